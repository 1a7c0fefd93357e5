"""Appends events: importers and the shipper (event)."""
