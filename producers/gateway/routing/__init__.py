"""Chooses policy and engine of a call: routes, sticky sessions, engines (route)."""
