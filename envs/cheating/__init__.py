"""Agents that look for a verdict without doing the task, and how often they win."""
