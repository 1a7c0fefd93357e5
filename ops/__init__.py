"""Running it: local services, load and faults. Nothing here is imported by the product."""
