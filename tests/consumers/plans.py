"""How a database looks for its answers: what a query reads, whatever the tables hold."""

from typing import Any

from sqlalchemy import Connection, event


def plans_of(connection: Connection) -> list[str]:
    """How SQLite looks for the answer to each statement from now on."""
    plans: list[str] = []

    def explain(of: Connection, cursor: Any, statement: str, given: Any, *_: Any) -> None:
        found = of.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", given)
        plans.append("; ".join(row[3] for row in found))

    event.listen(connection, "before_cursor_execute", explain)
    return plans
