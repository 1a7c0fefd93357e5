"""Reproduce published tables with your own model and machines."""
