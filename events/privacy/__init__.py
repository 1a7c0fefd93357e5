"""Encryption per person: the key store and the sealing of messages (event)."""
