"""A local Apache Kafka of one node, for tests, benches and a laptop."""
