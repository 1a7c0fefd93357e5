"""Agents that try to win without doing the task, and a measurement of how often they succeed."""
