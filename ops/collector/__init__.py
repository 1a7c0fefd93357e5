"""An OpenTelemetry Collector to which tests send spans and from which they receive spans."""
