"""Folds and reads of the methods, in one package for each method."""
