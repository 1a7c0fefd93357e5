"""The demo: rollouts made on the spot, folded through killed processes into failure patterns."""
