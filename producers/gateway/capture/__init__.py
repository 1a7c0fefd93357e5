"""Captures calls for the log: answers, sessions, idempotency, feedback (event)."""
