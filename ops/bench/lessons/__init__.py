"""How fast lessons are made, and how many each operator makes in an environment."""
