"""Gate and route adapters: tests before an adapter serves, monitoring afterwards."""
