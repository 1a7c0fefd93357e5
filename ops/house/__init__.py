"""Measures of the code's own structure: names, function length, modules per folder, import circles."""
