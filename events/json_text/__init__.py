"""JSON texts: checks, counts of values, and the writing of large documents."""
