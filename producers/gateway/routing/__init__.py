"""Chooses the engine of a call: routes, sticky sessions, engines (route)."""
