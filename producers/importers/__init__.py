"""Importers: read files of recorded rollouts in other programs' formats (event)."""
