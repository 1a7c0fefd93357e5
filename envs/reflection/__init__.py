"""Repairs of failed calls: their form, similarity, reward, and how benchmarks score them."""
