"""Beside the agent: answers its calls from an engine and records them exactly (call -> event)."""
