"""Parts that tau2-bench's domains share: tool conventions, loader, replay and gold."""
