"""Structured Reflection: tasks that begin after a wrong call and train to reflect and repair it."""
