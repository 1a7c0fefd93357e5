"""Retail customer service: tau2-bench's tools and rules over databases of our own."""
