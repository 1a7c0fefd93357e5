"""Versions of the grading rules decide which verdicts count and when an agent's patterns begin
anew. Our verdicts name their rules as ENVIRONMENT/VERSION (`RolloutEnded.grader`). Tasks of one
environment may have different versions at the same time. So versions are compared within a kind:
the generator or split in a task's id, the task itself if it is data, else the environment. Verdicts
under older rules stay in the tables but never count. If newer rules judge the agent's own traffic,
all patterns of the pair begin anew, because recurrence is a share of all its failures. Verdicts by
persons, other graders and imports have no version and always count.
"""

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    delete,
    exists,
    false,
    func,
    not_,
    or_,
    select,
    update,
)

from consumers.batch import upsert
from consumers.tables import Pattern, Rollout, RuleVersion, Task, TaskPattern
from events.rollouts import RolloutEnded

_NAME_CHARACTERS: Final = 63
"""Most characters in an environment's name (envs/registry.py); a table's key contains it."""
_DIGITS: Final = 9


def read_rules(data: RolloutEnded) -> int | None:
    """Return the version of our grading rules that judged a rollout. Return None without a version,
    for another grader, and for an import, because its file may name any grader."""
    environment, _, version = (data.grader or "").rpartition("/")
    is_ours = data.task is not None and environment == data.task.environment
    is_version = version.isascii() and version.isdecimal() and len(version) <= _DIGITS
    if data.purpose == "import" or not is_ours or not is_version:
        return None
    if not 0 < len(environment) <= _NAME_CHARACTERS:
        return None
    return int(version)


def find_rule_kind(rollouts: Any) -> ColumnElement[str]:
    """Return the kind of task within which a rollout's rules are compared."""
    is_data = rollouts.task_key.like("%/=%")
    own = case((is_data, rollouts.task_key), else_=rollouts.environment)
    return func.coalesce(rollouts.kind, own)


def follows_newest_rules(rollouts: Any) -> ColumnElement[bool]:
    """Return the SQL condition that no round has stored newer rules for the kind of task."""
    kinds = RuleVersion.table().c
    return not_(
        exists().where(
            kinds.alias == rollouts.alias,
            kinds.base == rollouts.base,
            kinds.kind == find_rule_kind(rollouts),
            kinds.rules > rollouts.rules,
        )
    )


def note_versions(connection: Connection, number: int, counts: ColumnElement[bool]) -> None:
    """Store the rule versions of a round's verdicts. If a pair's version changed, its patterns
    begin anew. `counts` selects an agent's own rollouts by policies that answer now."""
    rows = _read_versions(connection, number, counts)
    known = _read_rows(connection, {(row.alias, row.base) for row in rows})
    noted = [_note(row, known.get((row.alias, row.base, row.kind)), number) for row in rows]
    for pair in sorted({(row["alias"], row["base"]) for row in noted if row["changed"] == number}):
        _begin_anew(connection, *pair, number)
    if noted:
        upsert(connection, RuleVersion, noted)


def _read_versions(connection: Connection, number: int, counts: ColumnElement[bool]) -> list[Any]:
    """Return (alias, base, kind, environment, newest, counted) of a round's kinds; `counted` is the
    newest version of the verdicts that may count."""
    rollouts = Rollout.table().c
    kind = find_rule_kind(rollouts)
    query = (
        select(
            rollouts.alias, rollouts.base, kind.label("kind"),
            func.min(rollouts.environment).label("environment"),
            func.max(rollouts.rules).label("newest"),
            func.max(case((counts, rollouts.rules))).label("counted"),
        )
        .where(rollouts.round == number, rollouts.rules.is_not(None))
        .group_by(rollouts.alias, rollouts.base, kind)
    )  # fmt: skip
    return list(connection.execute(query))


def _read_rows(
    connection: Connection, pairs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str, str], Any]:
    kinds = RuleVersion.table()
    of_pairs = or_(
        false(), *(and_(kinds.c.alias == alias, kinds.c.base == base) for alias, base in pairs)
    )
    rows = connection.execute(select(kinds).where(of_pairs))
    return {(row.alias, row.base, row.kind): row for row in rows}


def _note(row: Any, known: Any, number: int) -> dict[str, Any]:
    newest = row.newest if known is None else max(known.rules, row.newest)
    before = None if known is None else known.counted
    noted = {
        "alias": row.alias,
        "base": row.base,
        "kind": row.kind,
        "environment": row.environment,
        "rules": newest,
        "counted": before,
        "before": None if known is None else known.before,
        "changed": None if known is None else known.changed,
    }
    if row.counted != newest:
        return noted
    if before is not None and before < newest:
        noted |= {"before": before, "changed": number}
    return {**noted, "counted": newest}


def _begin_anew(connection: Connection, alias: str, base: str, number: int) -> None:
    """Remove the evidence of a pair's patterns; keep overrides and the tags of written tasks."""
    kinds, patterns = RuleVersion.table(), Pattern.table()
    own = (patterns.c.alias == alias, patterns.c.base == base)
    connection.execute(
        update(kinds).where(kinds.c.alias == alias, kinds.c.base == base).values(counted=None)
    )
    connection.execute(delete(patterns).where(*own, patterns.c.operator.is_(None)))
    connection.execute(
        update(patterns).where(*own).values(anchors="{}", examples="[]", first_round=number)
    )
    tags, tasks = TaskPattern.table(), Task.table()
    is_written = exists().where(
        tasks.c.alias == tags.c.alias,
        tasks.c.task == tags.c.task_key,
        tasks.c.pattern == tags.c.pattern,
    )
    connection.execute(
        delete(tags).where(tags.c.alias == alias, tags.c.base == base, not_(is_written))
    )
