"""The loop on a real stack: Kafka, PostgreSQL, vLLM, and a process per role."""
