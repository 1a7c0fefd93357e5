"""Repairs of failed calls: their format, similarity and reward, and how benchmarks score them."""
