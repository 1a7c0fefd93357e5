"""Published tables, to be run again with one's own model and machines."""
