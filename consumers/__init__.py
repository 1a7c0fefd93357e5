"""What folds: log -> SQL tables, and typed reads of them (projection)."""
