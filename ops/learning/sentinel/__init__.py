"""Targeted against general reinforcement learning at equal rollouts (docs/learning.md)."""
