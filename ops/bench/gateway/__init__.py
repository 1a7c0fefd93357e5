"""Benchmark: cost of the gateway per call, compared with a public gateway and with no gateway."""
