"""The device: its state, the tools over it, and what its network knows."""
