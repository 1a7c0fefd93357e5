"""Repairs of failed calls: their form, their similarity, their reward, and how benchmarks score
them."""
