"""Drivers that kill, pause and starve real processes and then compare what is left."""
