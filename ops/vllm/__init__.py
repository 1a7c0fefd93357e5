"""A real vLLM on this machine's CPU, for tests and benches."""
