"""The device: its state, the tools that act on it, and the data of its network services."""
