"""Lessons: practice in repairing a call that went wrong."""
