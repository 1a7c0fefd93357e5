"""Fold the log into SQL tables, and read the tables as typed values (projection)."""
