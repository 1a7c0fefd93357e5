"""The projection: one short function per event type turns an event into rows."""
