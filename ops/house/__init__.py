"""Measures of the code itself: names, function length, modules per folder, import circles."""
