"""Base, general and targeted training at equal rollouts (SENTINEL, arXiv 2606.12908)."""
