"""What the roles say of themselves to Prometheus."""
