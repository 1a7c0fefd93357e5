"""Measure adapters that play users: how often they err after so many dialogues."""
