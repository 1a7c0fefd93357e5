"""Typed reads of the projection tables (projection)."""
