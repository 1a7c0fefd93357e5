"""Tests of models that plan, write and revise."""
