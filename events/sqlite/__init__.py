"""The embedded log: one SQLite file in WAL mode (event)."""
