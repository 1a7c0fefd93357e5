"""Plans in the cycle: which sets are used again, how quotas are filled by them, what they do."""
