"""Measures of the code: names, function length, modules per folder, import circles."""
