"""The learning cycle: when it is due, its next step, and its roles (cycle)."""
