"""Decides and runs: the command line, and the one place that wires objects (cycle)."""
