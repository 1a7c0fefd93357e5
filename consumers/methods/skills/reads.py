"""Reads of skills, and of the rollouts that a comparison reads."""

import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis.labelled import labelled_rollouts
from consumers.diagnosis.round_counts import OTHER, Pair, of_agents
from consumers.methods.skills.measures import SkillState
from consumers.rows import make_row
from consumers.tables import Rollout, Skill, SkillComparison

MOST_ROLLOUTS: Final = 100_000
"""Most rollouts that a comparison reads; the newest are kept."""


@dataclass(frozen=True, slots=True)
class ContrastRollout:
    """A representative rollout, with the facts that a comparison needs."""

    rollout: str
    task: str
    """Key of its task. A labelling draws all rollouts of a task together."""
    failed: bool
    pattern: str | None
    """`category|pivot`; None for a success, and for a failure that no rule explains."""
    has_loop: bool
    """Whether the agent repeated a call in a loop; known without a verdict."""
    tools: frozenset[str]
    """Tools that were called or expected."""


@dataclass(frozen=True, slots=True)
class SkillLine:
    """A skill of an agent, with the figures of the last comparison that considered it."""

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
    """Number of failures to which the skill applies."""
    successes: int
    """Number of successes to which the skill applies."""
    within: str | None
    """Selected skill that most failures lacking this one lack too, if any."""
    examples: tuple[str, ...]
    """Ids of failed rollouts that lack the skill."""
    labeller: str | None
    """Model that named the skill and labelled rollouts; None for rules."""
    round: int
    """Last round of the history that the comparison read."""
    time: str | None


@dataclass(frozen=True, slots=True)
class SkillComparisonLine:
    """The last comparison of an agent."""

    alias: str
    base: str
    since: int
    """First round of the history that the comparison read."""
    round: int
    """Last round that the comparison read."""
    failures: int
    successes: int
    labeller: str | None
    """Model that labelled the rollouts; None for rules."""
    left_out: int | None
    """Representative rollouts that could not be shown to the model."""
    refused: int | None
    """Labellings by the model that were refused."""
    time: str | None


def read_contrast_rollouts(
    connection: Connection, pair: Pair, since: int, until: int
) -> list[ContrastRollout]:
    """Return an agent's judged rollouts in rounds `since` to `until`, the newest `MOST_ROLLOUTS`.
    They are of its own traffic, by policies that answered at the round's close. Only the earliest
    is kept for each policy and trace."""
    rollouts = labelled_rollouts().c
    query = (
        select(
            rollouts.rollout, rollouts.policy, rollouts.trace_key, rollouts.task_key,
            rollouts.category, rollouts.pivot, rollouts.loops, rollouts.tools,
        )
        .where(rollouts.round.between(since, until), *_are_compared(rollouts, pair))
        .order_by(rollouts.time.desc().nulls_last(), rollouts.rollout.desc())
        .limit(MOST_ROLLOUTS)
    )  # fmt: skip
    first: dict[tuple[str, str], ContrastRollout] = {}
    for row in reversed(connection.execute(query).all()):
        key = (row.policy, row.trace_key)
        if key not in first:
            first[key] = _read_rollout(row)
    return list(first.values())


def _are_compared(rollouts: Any, pair: Pair) -> list[ColumnElement[bool]]:
    return [
        rollouts.alias == pair.alias,
        rollouts.base == pair.base,
        rollouts.success.is_not(None),
        rollouts.outdated.is_(False),
        of_agents(rollouts),
    ]


def _read_rollout(row: Any) -> ContrastRollout:
    is_explained = row.category not in (None, OTHER)
    return ContrastRollout(
        rollout=row.rollout,
        task=row.task_key,
        failed=row.category is not None,
        pattern=f"{row.category}|{row.pivot}" if is_explained else None,
        has_loop=row.loops > 0,
        tools=frozenset(json.loads(row.tools)),
    )


def list_judged_rounds(connection: Connection, pair: Pair, until: int, most: int) -> list[int]:
    """Return the newest `most` rounds up to `until` in which the pair has a judged rollout."""
    rollouts = Rollout.table().c
    query = (
        select(rollouts.round)
        .where(rollouts.round <= until, *_are_compared(rollouts, pair))
        .distinct()
        .order_by(rollouts.round.desc())
        .limit(most)
    )
    return list(connection.execute(query).scalars())


def read_comparisons(connection: Connection) -> dict[Pair, SkillComparisonLine]:
    """Return the last comparison of each agent on each base."""
    table = SkillComparison.table()
    query = select(table).order_by(table.c.alias, table.c.base)
    lines = [make_row(SkillComparisonLine, row) for row in connection.execute(query)]
    return {Pair(line.alias, line.base): line for line in lines}


def read_skills(
    connection: Connection, alias: str | None = None, state: SkillState | None = None
) -> list[SkillLine]:
    """Return skills of one agent or all, in one state or any; by agent, largest contrast first."""
    table = Skill.table()
    query = select(table)
    if alias is not None:
        query = query.where(table.c.alias == alias)
    if state is not None:
        query = query.where(table.c.state == state.value)
    query = query.order_by(table.c.alias, table.c.base, table.c.delta.desc(), table.c.skill)
    return [
        make_row(
            SkillLine,
            row,
            patterns=tuple(json.loads(row.patterns)),
            examples=tuple(json.loads(row.examples)),
        )
        for row in connection.execute(query)
    ]


def list_wanted_branches(connection: Connection) -> set[tuple[str, str, str]]:
    """Return (agent, base, skill) of each skill that the last comparison selected for training."""
    return {
        (line.alias, line.base, line.skill)
        for line in read_skills(connection, state=SkillState.SELECTED)
    }
