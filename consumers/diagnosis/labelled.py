"""Rollouts with the label that counts: the label by a proven repair, else the label by the rules.
Events of the stream `learning` close rounds and store repairs. So a round always counts with the
repairs before it in that stream. A later repair changes the shown label and later rounds."""

from sqlalchemy import FromClause, Subquery, case, func, select
from sqlalchemy.sql import ColumnElement

from consumers.tables import Repair, Rollout


def labelled_rollouts() -> Subquery:
    """Return a subquery of all rollouts. `category` and `pivot` come from a proven repair, if there
    is one, else from the rules; `rule_category` and `rule_pivot` always come from the rules."""
    rollouts = Rollout.table().c
    category, pivot = label_columns()
    others = [column for column in rollouts if column.name not in ("category", "pivot")]
    return (
        select(
            *others,
            category.label("category"),
            pivot.label("pivot"),
            rollouts.category.label("rule_category"),
            rollouts.pivot.label("rule_pivot"),
        )
        .select_from(rollouts_with_repairs())
        .subquery("labelled")
    )


def rollouts_with_repairs() -> FromClause:
    """Return the SQL join of each rollout with its repair, if it has one."""
    rollouts, repairs = Rollout.table(), Repair.table()
    return rollouts.outerjoin(repairs, repairs.c.rollout == rollouts.c.rollout)


def label_columns() -> tuple[ColumnElement[str | None], ColumnElement[str | None]]:
    """Return the columns category and pivot for a query over `rollouts_with_repairs`. A repair
    changes the label only if the rules found a failure."""
    rollouts, repairs = Rollout.table().c, Repair.table().c
    failed = rollouts.category.is_not(None)
    category = case((failed, func.coalesce(repairs.category, rollouts.category)))
    is_proven = failed & repairs.category.is_not(None)
    return category, case((is_proven, repairs.pivot), else_=rollouts.pivot)
