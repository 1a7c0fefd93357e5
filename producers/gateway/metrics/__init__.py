"""What a gateway reports to Prometheus (event)."""
