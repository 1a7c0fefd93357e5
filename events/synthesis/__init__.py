"""Events of data synthesis: plans for writing and judging tasks, and causes of failures."""
