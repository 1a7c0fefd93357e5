"""The spool of a home: ownership, unshipped records, and a new id after a restore (event)."""
