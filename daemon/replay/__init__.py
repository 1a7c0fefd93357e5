"""Inspect the past of a log: replay, diff, bisect and what-if (projection)."""
