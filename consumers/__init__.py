"""Folds the log: log -> SQL tables, and typed reads of them (projection)."""
