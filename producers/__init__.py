"""Programs that append events: the gateway, importers and the shipper (event)."""
