"""Reinforcement learning with users that err, with attribution and without."""
