"""Account for a finished cycle's gain: how many points each of five stages lost."""
