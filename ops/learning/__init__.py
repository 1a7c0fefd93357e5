"""The learning experiments: four ways to spend one budget of rollouts on a weak policy."""
