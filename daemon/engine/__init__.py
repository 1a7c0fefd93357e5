"""The embedded inference server, for machines without vLLM (route)."""
