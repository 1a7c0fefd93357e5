"""Telecom customer service, tau2-bench's dual-control domain: the user acts on a phone."""
