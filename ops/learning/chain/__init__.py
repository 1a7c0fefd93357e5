"""Many cycles in a row by the product's own loop, in one process without engine and gateway."""
