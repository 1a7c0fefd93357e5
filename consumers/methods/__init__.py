"""Folds and reads of the methods, a room for each."""
