"""Training runs as processes that outlive the one that started them."""
