"""Numbers of adapters in a running engine: publishes, flips, fingerprints, planted faults."""
