"""OpenTelemetry spans of model calls, as sent and as read (event)."""
