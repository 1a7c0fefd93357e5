"""Tests of the users that a job trains, gates and stages."""
