"""The spool of a home: who owns it, and what of it has not been shipped (event)."""
