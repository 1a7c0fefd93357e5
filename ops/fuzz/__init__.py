"""Requests that no real client would send, to a real gateway over a real engine; and texts that are
bad for those who read them."""
