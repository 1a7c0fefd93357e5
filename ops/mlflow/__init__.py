"""MLflow, which the tests send spans to."""
