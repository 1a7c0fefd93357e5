"""Facts that rules derive from a task and from what was said in an episode."""
