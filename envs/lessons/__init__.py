"""Lessons: training tasks in which an agent repairs a wrong call."""
