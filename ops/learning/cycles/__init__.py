"""Eight cycles of the loop beside general RL, supervised training and the base."""
