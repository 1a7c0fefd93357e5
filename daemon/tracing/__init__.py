"""What happened, as spans: derived from the log and its tables, and sent as OTLP."""
