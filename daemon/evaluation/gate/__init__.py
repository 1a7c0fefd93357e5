"""The gate: decide whether a candidate may replace the incumbent (decision.py)."""
