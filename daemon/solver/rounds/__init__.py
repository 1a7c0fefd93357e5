"""Rounds of a job: diagnose its own rollouts, write tasks, change its task pools (Rounds)."""
