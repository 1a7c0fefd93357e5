"""Tests of the Controller."""
