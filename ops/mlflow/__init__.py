"""MLflow, which tests send spans to."""
