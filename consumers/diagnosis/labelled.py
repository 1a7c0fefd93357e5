"""Rollouts with the label that counts: what a repair proves, else what the rules say.

Rounds are closed by events of `learning`, and so are repairs stored: a round counts with the
repairs that come before it in that order, whatever the interleaving of partitions. A later repair
changes what is shown, and the rounds after it.
"""

from sqlalchemy import FromClause, Subquery, case, func, select
from sqlalchemy.sql import ColumnElement

from consumers.tables import Repair, Rollout


def labelled_rollouts() -> Subquery:
    """The table of rollouts, with `category` and `pivot` of the repair where one is proven; the
    rules' own are `rule_category` and `rule_pivot`."""
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
    """Each rollout beside its repair, if it has one."""
    rollouts, repairs = Rollout.table(), Repair.table()
    return rollouts.outerjoin(repairs, repairs.c.rollout == rollouts.c.rollout)


def label_columns() -> tuple[ColumnElement[str | None], ColumnElement[str | None]]:
    """Category and pivot in a query over `rollouts_with_repairs`. A repair labels only what the
    rules take for a failure."""
    rollouts, repairs = Rollout.table().c, Repair.table().c
    failed = rollouts.category.is_not(None)
    category = case((failed, func.coalesce(repairs.category, rollouts.category)))
    is_proven = failed & repairs.category.is_not(None)
    return category, case((is_proven, repairs.pivot), else_=rollouts.pivot)
