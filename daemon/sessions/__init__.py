"""Conversations of recorded calls: closing them and reading them back (rollout)."""
