"""One specification of columns gives a table and JSON."""

from dataclasses import dataclass
from typing import Any

import pytest

from daemon.cli.output import Columns, Output


@dataclass(frozen=True)
class Price:
    points: float | None


@dataclass(frozen=True)
class Line:
    name: str
    tasks: int
    price: Price | None


COLUMNS = Columns(
    "name",
    ("tasks", "tasks:,"),
    ("price", "price.points:.1f"),
    ("long", lambda line: len(line.name) > 3),
    right=("tasks",),
)
LINES = [
    Line("one", 1_200, Price(2.26)),
    Line("three", 3, Price(None)),
    Line("four", 4, None),
]


def test_a_document_has_the_value_of_each_column() -> None:
    assert [COLUMNS.document(line) for line in LINES] == [
        {"name": "one", "tasks": "1,200", "price": "2.3", "long": False},
        {"name": "three", "tasks": "3", "price": None, "long": True},
        {"name": "four", "tasks": "4", "price": None, "long": True},
    ]


def test_a_row_may_be_a_mapping() -> None:
    row = {"name": "one", "tasks": 5, "price": {"points": 1}}
    columns = Columns("name", ("tasks", "tasks:,"), ("price", "price.points:.1f"))
    assert columns.document(row) == {"name": "one", "tasks": "5", "price": "1.0"}


def test_a_name_that_no_row_has_is_an_error() -> None:
    with pytest.raises(AttributeError, match="tsaks"):
        Columns("tsaks").document(LINES[0])


@pytest.mark.parametrize("json", [False, True])
def test_rows_are_a_table_or_a_document(json: bool, capsys: Any) -> None:
    output = Output(json=json)
    output.show_rows(LINES, COLUMNS, nothing="there is none", describe=lambda line: line.tasks)
    output.show_rows([], COLUMNS, nothing="there is none")
    captured = capsys.readouterr()
    assert captured.err == "there is none\n"
    if json:
        assert captured.out == "[1200,3,4]\n[]\n"
        return
    heading, _, first, *_ = captured.out.splitlines()
    assert heading.split() == ["name", "tasks", "price", "long"]
    assert first.split() == ["one", "1,200", "2.3", "False"]
    assert first.index("1,200") == heading.index("tasks")
