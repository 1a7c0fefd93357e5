"""JSON texts: how much they hold, and how large ones are written."""
