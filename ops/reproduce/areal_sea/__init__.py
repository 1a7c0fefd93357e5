"""AReaL-SEA's table: base, supervised training, and reinforcement learning with two users."""
