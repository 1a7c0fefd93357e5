"""The learning cycle: when it is due, what comes next, and who advances it (cycle)."""
