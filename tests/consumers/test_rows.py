"""Rows of dataclasses are made of a table's rows by name."""

from dataclasses import dataclass

import pytest
from sqlalchemy import Row, create_engine, literal, select

from consumers.rows import make_row


@dataclass(frozen=True)
class Line:
    name: str
    tags: tuple[str, ...]
    count: int = 0


@dataclass(frozen=True)
class Unknown:
    nowhere: str


def read() -> "Row[tuple[int, str, str, str]]":
    query = select(
        literal(3).label("count"),
        literal("a,b").label("tags"),
        literal("x").label("name"),
        literal("y").label("other"),
    )
    with create_engine("sqlite://").connect() as connection:
        return connection.execute(query).one()  # type: ignore[return-value]


def test_fields_come_from_columns_of_their_name_but_for_those_that_are_named() -> None:
    row = read()
    assert make_row(Line, row, tags=tuple(row.tags.split(","))) == Line("x", ("a", "b"), 3)


def test_a_field_that_no_column_has_is_an_error() -> None:
    with pytest.raises(KeyError, match="nowhere"):
        make_row(Unknown, read())
