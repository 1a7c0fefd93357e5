"""Why rollouts failed: labels by rule, rounds, and ranked failure patterns (projection)."""
