"""Hostile requests to a real gateway over a real engine, and hostile texts for parsers."""
