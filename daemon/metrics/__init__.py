"""Prometheus metrics of the roles."""
