"""Comparing what an agent did and said with what was expected, by what it means."""
