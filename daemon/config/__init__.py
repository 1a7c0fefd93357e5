"""Settings of every role, and the presets they choose from (cycle)."""
