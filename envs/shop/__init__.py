"""shop: a small retail environment of our own, for small models, the demo and learning."""
