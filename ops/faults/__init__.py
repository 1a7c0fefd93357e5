"""Drivers that kill, pause and starve real processes and then check what is left."""
