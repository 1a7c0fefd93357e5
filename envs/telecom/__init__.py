"""Telecom customer service with a user who holds a phone: tau2-bench's dual-control domain."""
