"""Hours of mixed load, kills and restarts on everything at once, and what grows meanwhile."""
