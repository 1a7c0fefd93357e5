"""Folds and reads of skills, panels and their members."""
