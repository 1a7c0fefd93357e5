"""The shared parts of tau2-bench's domains: tool conventions, loader, replay and gold (rollout)."""
