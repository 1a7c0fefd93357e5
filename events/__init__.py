"""The events that may be written, and the log: contract and storage (event)."""
