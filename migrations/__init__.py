"""Alembic migrations of the projection tables, for both SQLite and PostgreSQL."""
