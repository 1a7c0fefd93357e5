"""Parts that every role needs: wiring, leadership, health, decisions in the log (cycle)."""
