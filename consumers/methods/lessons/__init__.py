"""Reads of lessons."""
