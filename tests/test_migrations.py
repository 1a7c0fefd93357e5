"""Revisions in the order in which versions follow one another: they add, and drop only later. What
an empty database gets at once is what they make of the oldest tables."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from consumers.database import open_database, write_transaction
from consumers.tables import OLDEST_REVISION, REVISION
from migrations.head import lay_out
from migrations.upgrade import current, differences, head, upgrade

VERSIONS = sorted((Path(__file__).parents[1] / "migrations" / "versions").glob("[0-9]*.py"))
CONTRACT = "Contract: "
"""How the docstring of a revision begins that drops what the version before no longer reads."""

TAKES_AWAY = ("drop_", "alter_", "rename_", "execute")


def upgrade_of(revision: ast.Module) -> ast.FunctionDef:
    (found,) = [
        one for one in revision.body if isinstance(one, ast.FunctionDef) and one.name == "upgrade"
    ]
    return found


def called(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr, node


def troubles(source: str) -> list[str]:
    """What a version that runs on these tables while it is replaced would stumble over."""
    revision = ast.parse(source)
    if (ast.get_docstring(revision) or "").startswith(CONTRACT):
        return []
    found: list[str] = []
    for name, call in called(upgrade_of(revision)):
        if name.startswith(TAKES_AWAY):
            found.append(ast.unparse(call))
        if name == "add_column":
            said = {word.arg: ast.unparse(word.value) for word in _column(call).keywords}
            if said.get("nullable") != "True" and "server_default" not in said:
                found.append(ast.unparse(call))
    return found


def _column(call: ast.Call) -> ast.Call:
    (column,) = [
        one for name, one in called(call) if name == "Column"
    ]  # fmt: skip
    return column


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_revision_only_adds(path: Path) -> None:
    assert troubles(path.read_text()) == [], f"see docs/upgrading.md, or begin with {CONTRACT!r}"


def test_what_takes_away_is_found() -> None:
    body = (
        "op.drop_column('a', 'b')",
        "op.add_column('a', sa.Column('b', sa.Text(), nullable=False))",
        "op.add_column('a', sa.Column('c', sa.Text(), nullable=True))",
    )
    source = "def upgrade() -> None:\n" + "".join(f"    {line}\n" for line in body)
    assert troubles(source) == list(body[:2])
    assert troubles(f'"""{CONTRACT}nobody reads b."""\n{source}') == []


def downgrade(engine: Engine, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(VERSIONS[0].parents[1]))
    with write_transaction(engine) as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Engine]:
    """A SQLite database without tables."""
    opened = open_database(f"sqlite:///{tmp_path / 'empty.db'}")
    yield opened
    opened.dispose()


def test_an_empty_database_gets_the_tables_of_the_code(empty: Engine) -> None:
    assert lay_out(empty) == REVISION == current(empty) == head()
    assert differences(empty) == []
    assert lay_out(empty) is None


def test_the_oldest_tables_are_upgraded_to_those_of_the_code(empty: Engine) -> None:
    lay_out(empty)
    downgrade(empty, OLDEST_REVISION)
    assert (current(empty), differences(empty) == []) == (OLDEST_REVISION, False)
    assert upgrade(empty) == REVISION == current(empty)
    assert differences(empty) == []


def test_nothing_is_laid_out_beside_other_tables(empty: Engine) -> None:
    with write_transaction(empty) as connection:
        connection.execute(text("CREATE TABLE notes (note TEXT)"))
    before = differences(empty)
    assert lay_out(empty) is None
    assert differences(empty) == before
