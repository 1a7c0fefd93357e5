"""OpenTelemetry spans of model calls: OTLP, GenAI conventions, trace context (event)."""
