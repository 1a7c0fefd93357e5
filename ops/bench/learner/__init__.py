"""The learner against TRL: the same batch, the same adapter, side by side."""
