"""Make rows of a dataclass from rows of a table, whose columns have the names of its fields."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Row

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def make_row(kind: type[T], row: Row[*tuple[Any, ...]], **own: Any) -> T:
    """Return a `kind` with the values `own`, and all others from `row`. Raise KeyError for a field
    that is in neither."""
    columns = row._mapping
    return kind(
        **{field.name: columns[field.name] for field in fields(kind) if field.name not in own},
        **own,
    )
