"""Alembic migrations of the projection tables, for SQLite and PostgreSQL alike."""
