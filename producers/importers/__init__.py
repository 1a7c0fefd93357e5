"""Files of recorded rollouts, in the formats of others (event)."""
