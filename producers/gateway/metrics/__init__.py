"""The metrics of a gateway for Prometheus (event)."""
