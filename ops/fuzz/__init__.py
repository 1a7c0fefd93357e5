"""Requests that no real client would send, to a real gateway over a real engine."""
