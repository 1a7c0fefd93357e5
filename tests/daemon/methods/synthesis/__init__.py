"""Tests of the data engine."""
