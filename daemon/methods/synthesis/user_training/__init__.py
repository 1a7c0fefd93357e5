"""Train adapters that play users, and play dialogues with them."""
