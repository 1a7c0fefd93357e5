"""The parts of every role: wiring, leadership, health, and the log's decisions (cycle)."""
