"""Repairs before and after training on lessons (Structured Reflection, arXiv 2509.18847)."""
