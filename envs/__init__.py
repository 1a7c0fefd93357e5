"""Executable environments: tasks, tools, users, rewards and evaluation."""
