"""Structured Reflection: tasks that begin with a wrong call and a reflection on it."""
