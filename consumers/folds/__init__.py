"""From an event to rows: one short function per event type (projection)."""
