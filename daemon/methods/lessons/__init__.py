"""Structured Reflection: tasks that begin with a wrong call, and what is said about it."""
