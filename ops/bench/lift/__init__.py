"""Measure how often the interval of the cumulative lift is wrong, on simulated traffic."""
