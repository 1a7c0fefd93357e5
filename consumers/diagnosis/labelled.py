"""Rollouts with the label that counts: that of a proven repair, else that of the rules. Events of
`learning` close rounds and store repairs. So a round counts with the repairs before it in that
order, however partitions interleave; a later repair changes the shown label and later rounds."""

from sqlalchemy import FromClause, Subquery, case, func, select
from sqlalchemy.sql import ColumnElement

from consumers.tables import Repair, Rollout


def labelled_rollouts() -> Subquery:
    """Return the rollouts with `category` and `pivot` of a proven repair; those of the rules are
    `rule_category` and `rule_pivot`."""
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
    """Return each rollout joined with its repair, if any."""
    rollouts, repairs = Rollout.table(), Repair.table()
    return rollouts.outerjoin(repairs, repairs.c.rollout == rollouts.c.rollout)


def label_columns() -> tuple[ColumnElement[str | None], ColumnElement[str | None]]:
    """Return category and pivot in a query over `rollouts_with_repairs`. A repair labels only
    failures by the rules."""
    rollouts, repairs = Rollout.table().c, Repair.table().c
    failed = rollouts.category.is_not(None)
    category = case((failed, func.coalesce(repairs.category, rollouts.category)))
    is_proven = failed & repairs.category.is_not(None)
    return category, case((is_proven, repairs.pivot), else_=rollouts.pivot)
