"""The log on Apache Kafka (event)."""
