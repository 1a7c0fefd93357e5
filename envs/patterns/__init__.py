"""Search an agent's text with the patterns of tasks, in linear time."""
