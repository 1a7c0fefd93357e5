"""What jobs have in common that play no rollouts."""
