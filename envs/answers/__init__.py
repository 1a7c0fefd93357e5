"""What a model answered, read from the wire."""
