"""Archives of a log: export, verification, restore, and reading them as a log (event)."""
