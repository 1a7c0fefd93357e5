"""Training runs as processes that outlive whoever started them."""
