"""Learner and engine on models of real shapes, on one GPU."""
