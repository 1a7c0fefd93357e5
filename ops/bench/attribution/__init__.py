"""Measure how many faults of users the rules find, and how often they blame a user for nothing."""
