"""Tests of the Proposer."""
