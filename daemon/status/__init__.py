"""Operator views: status document, status page and doctor (route)."""
