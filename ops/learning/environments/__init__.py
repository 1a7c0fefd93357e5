"""Reinforcement learning in several environments: mixed, apart, and with a job for each."""
