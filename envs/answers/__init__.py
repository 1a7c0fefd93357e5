"""Reads answers of models from the wire."""
