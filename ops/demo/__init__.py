"""The demo: a loop over simulated customers, from failures to a trained adapter and a report."""
