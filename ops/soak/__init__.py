"""Hours of mixed load, kills and restarts on the whole stack, and its growth meanwhile."""
