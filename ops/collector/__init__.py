"""The OpenTelemetry Collector, which the tests send spans to and get spans from."""
