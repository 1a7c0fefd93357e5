"""Outcomes of sessions that chance assigned: to a canary, and to the held-out share."""
