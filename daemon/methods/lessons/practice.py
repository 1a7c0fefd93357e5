"""Describe what lessons do for each agent and in a cycle, with reasons, for display.

The Controller's rule (controller/refusals.py), applied to the last round, tells the next choice.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from consumers.methods.lessons.reads import count_drawn_lessons
from consumers.reads import agents, learning, planning, rollouts
from consumers.reads.cycle_account import read_written_tasks
from consumers.reads.cycle_state import read_cycle_state
from consumers.reads.explanation import describe_after_error
from daemon.controller.refusals import Refusals, read_refusals

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.diagnosis.round_counts import Pair
    from consumers.reads.learning import CycleRow
    from daemon.config.settings import Settings
    from events.gate import AfterError


@dataclass(frozen=True, slots=True)
class PatternRefusals:
    """How many of a pattern's failures in the last round hold a refused call."""

    pattern: str
    failures: int
    refused: int
    """Number of failures with a call that a tool refused."""
    is_basis: bool
    """Whether refused calls are frequent enough for the pattern to be practised by lessons."""


@dataclass(frozen=True, slots=True)
class LessonPractice:
    """The effect of lessons on one agent at present, for display."""

    alias: str
    base: str
    setting: str
    """Value of the setting `improve.lessons`."""
    lessons: int
    """Number of lessons that the agent's next job may draw."""
    patterns: tuple[PatternRefusals, ...]
    """The patterns that get tasks, the highest priority first."""
    says: str
    """A sentence on the setting's effect on the agent, or on why it has none."""


def read_practices(connection: "Connection", settings: "Settings") -> list[LessonPractice]:
    """Return the state of lessons for each agent that was seen, ordered by alias."""
    last = rollouts.last_round(connection)
    number = None if last is None else last.round
    practices = [
        _read_practice(connection, settings, pair, number) for pair in agents.present(connection)
    ]
    return sorted(practices, key=lambda practice: practice.alias)


def _read_practice(
    connection: "Connection", settings: "Settings", pair: "Pair", number: int | None
) -> LessonPractice:
    setting = settings.improve.lessons
    counts = {} if number is None else read_refusals(connection, pair, number)
    patterns = tuple(
        PatternRefusals(line.pattern, item.failures, item.refused, item.is_basis)
        for line in planning.heaviest_patterns(connection, pair.alias, pair.base)
        if (item := counts.get(line.pattern, Refusals(0, 0)))
    )
    written = setting != "off"
    lessons, every = (
        count_drawn_lessons(connection, pair.alias, written=written, sealed=sealed)
        for sealed in (settings.jobs.hands_keys, True)
    )
    says = _describe(setting, lessons, patterns)
    if every > lessons:
        says += (
            f"; {every - lessons:,} made of persons' sessions are left out, for jobs.runner is "
            f"{settings.jobs.runner} and hands over no keys"
        )
    return LessonPractice(pair.alias, pair.base, setting, lessons, patterns, says)


def _describe(setting: str, lessons: int, patterns: tuple[PatternRefusals, ...]) -> str:
    standing = [
        f"{item.pattern} ({Refusals(item.failures, item.refused).describe()})"
        for item in patterns
        if item.is_basis
    ]
    if setting == "off":
        if not standing:
            return "off"
        return f'off; improve.lessons = "auto" would have cycles practise {", ".join(standing)}'
    drawn = f"{lessons:,} for the next job to draw"
    if standing:
        return f"{drawn}; the next cycle writes some for {', '.join(standing)}"
    if not patterns:
        return f"{drawn}; no failure pattern has a priority"
    return f"{drawn}; no pattern of the last round stands on calls that tools refused"


@dataclass(frozen=True, slots=True)
class LessonPool:
    """A pool of a job from which lessons are drawn."""

    pool: str
    share: float
    tasks: int
    references: int
    """Number of lessons that a warm start shows."""


@dataclass(frozen=True, slots=True)
class CyclePractice:
    """The numbers of lessons in one cycle, and the result of its gate."""

    written: int
    rejected: int
    pools: tuple[LessonPool, ...]
    """Pools of lessons in the cycle's jobs; empty without a job."""
    after_error: "AfterError | None"
    """Last result of the cycle's gate on tasks after a refused call, or None."""

    def build_document(self) -> dict[str, Any]:
        """Return the figures as a JSON document."""
        measured = self.after_error
        return {
            **asdict(self),
            "after_error": None if measured is None else measured.model_dump(mode="json"),
        }

    def describe(self) -> str:
        """Return the figures as a sentence."""
        parts = [f"{self.written:,} written, {self.rejected:,} rejected"]
        parts += [
            f"{pool.pool} draws {pool.tasks:,} and shows {pool.references:,}" for pool in self.pools
        ]
        if self.after_error is not None:
            parts.append(describe_after_error(self.after_error.model_dump()))
        return "; ".join(parts)


def read_cycle_practice(connection: "Connection", cycle: "CycleRow") -> CyclePractice | None:
    """Return what lessons did in a cycle; None if it neither wrote nor drew any."""
    tasks = read_written_tasks(connection, cycle.cycle)
    written = sum(task.mode == "repair" for task in tasks)
    rejections = learning.rejections_of(connection, cycle.cycle)
    rejected = sum(row.mode == "repair" for row in rejections)
    jobs = [] if cycle.job is None else learning.list_cycle_jobs(connection, cycle.cycle)
    pools = tuple(
        LessonPool(pool.name, pool.share, len(pool.tasks), len(pool.references))
        for job in jobs
        for pool in job.spec.pools
        if pool.rewards_repairs
    )
    if not (written or rejected or pools):
        return None
    adapter = read_cycle_state(connection, cycle).adapter
    report = None if adapter is None else adapter.gate
    return CyclePractice(written, rejected, pools, None if report is None else report.after_error)
