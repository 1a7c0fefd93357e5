"""The smallest change of the agent's calls that turns a failed rollout's verdict (role `work`)."""
