"""Benchmarks: each prints one JSON document with ratios measured in one run."""
