"""Files of other programs under the names of a home's own: refused, and left as they are."""

import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from tests.daemon.conftest import Kintsugi

FOREIGN = (
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)",
    "CREATE TABLE meta (key TEXT, value TEXT)",
    "CREATE TABLE positions (id INTEGER PRIMARY KEY, title TEXT)",
    "CREATE TABLE alembic_version (version_num TEXT)",
    "CREATE TABLE meta(log, layout); CREATE TABLE partition(a); CREATE TABLE record(a)",
    "CREATE VIEW everything AS SELECT 1",
)
"""Statements that make the tables of another program."""


def make_database(path: Path, statements: str, wal: bool = False) -> str:
    """Make a database of another program; return a hash of its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(statements)
    return hash_file(path)


def hash_file(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("wal", [False, True])
@pytest.mark.parametrize("statements", FOREIGN)
def test_a_database_of_another_program_is_refused_and_stays_as_it_is(
    statements: str, wal: bool, home: Path, kintsugi: Kintsugi
) -> None:
    path = home / "kintsugi.db"
    before = make_database(path, statements, wal)
    for command in (("status",), ("patterns",), ("db", "upgrade"), ("db", "check"), ("rebuild",)):
        result = kintsugi(*command)
        assert result.code == 4, result.err
        assert f"{path} holds tables of another program" in result.err
        assert "move it away" in result.err
    assert kintsugi("doctor").code != 0
    assert hash_file(path) == before


@pytest.mark.parametrize("statements", FOREIGN)
def test_a_log_of_another_program_is_refused_and_stays_as_it_is(
    statements: str, home: Path, kintsugi: Kintsugi
) -> None:
    path = home / "log.db"
    before = make_database(path, statements)
    for command in (("status",), ("log", "verify")):
        result = kintsugi(*command)
        assert result.code == 4, result.err
        assert f"{path} is no log of kintsugi" in result.err
    assert hash_file(path) == before


@pytest.mark.parametrize("statements", FOREIGN)
def test_a_key_store_of_another_program_is_refused_and_stays_as_it_is(
    statements: str, imported: Path, kintsugi: Kintsugi
) -> None:
    path = imported / "keys.db"
    before = make_database(path, statements)
    result = kintsugi("erase", "--person", "rosa", "--yes")
    assert result.code == 4, result.err
    assert f"{path} holds tables of another program" in result.err
    assert hash_file(path) == before


def test_empty_files_are_filled(home: Path, kintsugi: Kintsugi) -> None:
    home.mkdir()
    (home / "kintsugi.db").touch()
    make_database(home / "keys.db", "VACUUM")
    assert kintsugi("status").code == 0
    assert kintsugi("db", "check").code == 0
    assert kintsugi("erase", "--person", "rosa", "--yes").code == 0


def test_a_file_that_is_no_database_is_named(home: Path, kintsugi: Kintsugi) -> None:
    for name, command in (("kintsugi.db", ("status",)), ("log.db", ("log", "verify"))):
        home.mkdir(exist_ok=True)
        (home / name).write_bytes(b"no database, and long enough to be taken for one" * 40)
        result = kintsugi(*command)
        assert result.code == 4, result.err
        assert str(home / name) in result.err
        (home / name).unlink()
