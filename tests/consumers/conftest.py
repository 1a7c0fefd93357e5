"""A migrated projection database of each kind, and a log with the mixed traffic of ops/bench."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from consumers import database
from migrations.upgrade import upgrade


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty migrated database, once per kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'projection.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    opened = database.open_database(url)
    upgrade(opened)
    yield opened
    opened.dispose()
