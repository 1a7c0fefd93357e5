"""Search the smallest change of the agent's calls that makes a failed rollout pass."""
