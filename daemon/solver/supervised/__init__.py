"""The shell that jobs without rollouts of their own share."""
