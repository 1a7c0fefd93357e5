"""The OpenTelemetry Collector that tests send spans to and receive spans from."""
