"""Event types, their stored form, and the log with its storage engines (event)."""
