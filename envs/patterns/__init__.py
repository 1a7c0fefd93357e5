"""Patterns of tasks: what an agent says is searched with them, in linear time."""
