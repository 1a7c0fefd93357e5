"""The data engine: plans how to write tasks, writes them, and revises plans after failures."""
