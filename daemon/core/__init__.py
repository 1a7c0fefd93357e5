"""What every role is built from: wiring, leadership, health, and the log's decisions (cycle)."""
