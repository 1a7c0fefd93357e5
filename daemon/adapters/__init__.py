"""Adapter directories: their layout, compatibility with a base, and fingerprints (adapter)."""
