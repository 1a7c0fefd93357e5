"""A table of the report's page (pure)."""

from collections.abc import Sequence
from html import escape


def build_table(names: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a table of HTML; every column but the first is set as numbers are."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place else ''}>{escape(str(value))}</{tag}>"
            for place, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><tr>{cells('th', names)}</tr>{body}</table>"
