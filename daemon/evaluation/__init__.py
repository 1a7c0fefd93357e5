"""Playing tasks with an agent, and the gate that compares two agents (adapter)."""
