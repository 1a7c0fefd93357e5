"""Published tables, run again by whoever has the model and the machines."""
