"""Make rows of a dataclass from rows of a table, whose columns have the names of its fields; pages
of ids for queries, and ids by their beginning."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Row, select

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_IDS_PER_QUERY: Final = 1000


def make_row(kind: type[T], row: Row[*tuple[Any, ...]], **own: Any) -> T:
    """Return an object of the dataclass `kind`: fields in `own` have those values, others come from
    `row`. Raise KeyError for a field that is in neither."""
    columns = row._mapping
    return kind(
        **{field.name: columns[field.name] for field in fields(kind) if field.name not in own},
        **own,
    )


def split_ids(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield the ids once each, in lists that one query may name."""
    unique = list(dict.fromkeys(ids))
    for start in range(0, len(unique), _IDS_PER_QUERY):
        yield unique[start : start + _IDS_PER_QUERY]


def find_by_prefix(connection: Connection, column: Any, prefix: str, limit: int) -> list[str]:
    """Return the first values of a column that start with `prefix`, each once, in order."""
    query = select(column).where(column.startswith(prefix, autoescape=True)).distinct()
    return list(connection.execute(query.order_by(column).limit(limit)).scalars())
