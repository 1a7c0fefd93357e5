"""Decide which adapter answers: the gate before serving, and the monitoring afterwards."""
