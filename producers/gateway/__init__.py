"""The gateway: answers an agent's calls from an engine and records them exactly (call -> event)."""
