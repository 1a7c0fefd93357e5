"""Requests that nobody would send, to a real gateway over a real engine."""
