"""The gate: whether a candidate may serve in the incumbent's place (decision.py)."""
