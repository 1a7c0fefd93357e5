"""Executable environments; for now, what each one declares of its tools (rollout)."""
