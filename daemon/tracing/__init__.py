"""Derive spans from the log and its tables, and send them as OTLP."""
