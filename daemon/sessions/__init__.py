"""Conversations of recorded calls: closing sessions and reading rollouts back (rollout)."""
