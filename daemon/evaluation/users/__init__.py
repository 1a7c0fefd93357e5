"""Measurements of policies beside users that may err."""
