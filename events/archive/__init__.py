"""Archives of a log: export, verification, restore, and read access as a log (event)."""
