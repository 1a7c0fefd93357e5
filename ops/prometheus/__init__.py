"""Prometheus's configuration and rules for kintsugi, and a real server for tests."""
