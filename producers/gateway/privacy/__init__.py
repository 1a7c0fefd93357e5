"""Client keys, and the redaction of what is recorded (event)."""
