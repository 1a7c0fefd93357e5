"""Skills as the tables have them, and the rollouts that a discovery compares."""

import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select

from consumers.diagnosis.labelled import labelled_rollouts
from consumers.diagnosis.round_counts import OTHER, Pair, of_agents
from consumers.tables import Skill

NO_TOOL: Final = "*"
"""Pivot of a failure without a gold write that is missing."""
SEEN_WITHOUT_VERDICT: Final = ("tool_loop", "incorrect_arguments")
"""Categories that a success can show: a loop, and a call that was refused or malformed."""

_ROWS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class ContrastRollout:
    """A representative rollout, as its labels have it."""

    rollout: str
    task: str
    """Key of its task: rollouts of one task are drawn together."""
    failed: bool
    pattern: str | None
    """`category|pivot`; None for a success, and for a failure that no rule explains."""
    pivot: str
    """`NO_TOOL` for a success."""
    shown: frozenset[str]
    """The category of a failure, and those of `SEEN_WITHOUT_VERDICT` that hold."""
    tools: frozenset[str]
    """Tools that were called or expected."""


@dataclass(frozen=True, slots=True)
class SkillLine:
    """A skill of an agent, as of the last discovery that had it."""

    alias: str
    base: str
    skill: str
    description: str
    patterns: tuple[str, ...]
    state: str
    delta: float
    delta_deviation: float
    coverage: float
    coverage_deviation: float
    selected: int
    labellings: int
    failures: int
    """Failures to which it applies."""
    successes: int
    """Successes to which it applies."""
    within: str | None
    """Another skill that most of its failures lack."""
    examples: tuple[str, ...]
    """Failed rollouts that lack it."""
    round: int
    """Round of the history that the discovery read last."""
    time: str | None


def read_contrast_rollouts(connection: Connection, pair: Pair, since: int) -> list[ContrastRollout]:
    """Return the judged rollouts of an agent's own traffic from round `since` on, of policies that
    answered it when the round was closed; one for each policy and trace, the earliest."""
    labelled = labelled_rollouts()
    rollouts = labelled.c
    query = (
        select(labelled)
        .where(
            rollouts.alias == pair.alias,
            rollouts.base == pair.base,
            rollouts.round >= since,
            rollouts.success.is_not(None),
            rollouts.outdated.is_(False),
            of_agents(rollouts),
        )
        .order_by(rollouts.time, rollouts.rollout)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )
    first: dict[tuple[str, str], ContrastRollout] = {}
    for row in connection.execute(query):
        key = (row.policy, row.trace_key)
        if key not in first:
            first[key] = _read_rollout(row)
    return list(first.values())


def _read_rollout(row: Any) -> ContrastRollout:
    looped, refused = row.loops > 0, row.tool_errors + row.malformed_calls > 0
    seen = zip(SEEN_WITHOUT_VERDICT, (looped, refused), strict=True)
    failed = row.category is not None
    explained = failed and row.category != OTHER
    return ContrastRollout(
        rollout=row.rollout,
        task=row.task_key,
        failed=failed,
        pattern=f"{row.category}|{row.pivot}" if explained else None,
        pivot=row.pivot if failed else NO_TOOL,
        shown=frozenset(name for name, holds in seen if holds)
        | ({row.category} if failed else set()),
        tools=frozenset(json.loads(row.tools)),
    )


def find_last_round(connection: Connection, pair: Pair) -> int | None:
    """Return the last round that a discovery of an agent on a base read; None before the first."""
    table = Skill.table().c
    query = select(table.round).where(table.alias == pair.alias, table.base == pair.base)
    return connection.execute(query.order_by(table.round.desc()).limit(1)).scalar()


def read_skills(connection: Connection, alias: str | None = None) -> list[SkillLine]:
    """Return the skills of an agent, or of all, the largest contrast of each agent first."""
    table = Skill.table()
    query = select(table)
    if alias is not None:
        query = query.where(table.c.alias == alias)
    query = query.order_by(table.c.alias, table.c.base, table.c.delta.desc(), table.c.skill)
    names = SkillLine.__dataclass_fields__.keys() - {"patterns", "examples"}
    return [
        SkillLine(
            patterns=tuple(json.loads(row["patterns"])),
            examples=tuple(json.loads(row["examples"])),
            **{name: row[name] for name in names},
        )
        for row in connection.execute(query).mappings()
    ]
