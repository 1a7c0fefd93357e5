"""Prometheus beside kintsugi: its configuration, rules, and a real one for tests."""
