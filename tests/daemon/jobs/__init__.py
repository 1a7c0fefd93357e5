"""Training runs as the daemon sees them."""
