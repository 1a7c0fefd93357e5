"""What appends: importers and the shipper (event)."""
