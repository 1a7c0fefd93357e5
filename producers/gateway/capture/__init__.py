"""What the log gets of a call: sessions, records, idempotency (event)."""
