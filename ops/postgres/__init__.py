"""A throw-away PostgreSQL for tests and benches."""
