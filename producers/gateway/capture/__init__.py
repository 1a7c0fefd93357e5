"""Records calls in the log: sessions, records, idempotency (event)."""
