"""A real MLflow server, to which tests send spans."""
