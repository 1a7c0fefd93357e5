"""Tests of the packages, folder by folder, with real parts."""
