"""Train a panel's router: an adapter that answers its prompt with the label of the right skill."""
