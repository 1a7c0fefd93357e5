"""Write lessons for the failure patterns of a cycle: the Proposer's tasks of the mode `repair`.

Sources are the pattern's recorded failures, then fresh tasks like the failed ones. Each lesson
begins after a call that a tool refused, since the pattern stands on refused calls. So none is made
of a repeated call, which tools allow. Guarantee: equal arguments give equal lessons, and a lesson
of an earlier cycle is not written again. Not covered: the choice of recordings, and the checks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from consumers.methods.lessons.reads import read_lesson_tasks
from consumers.reads import learning
from daemon.methods.lessons.writer import RecordingReader, seal_lessons
from daemon.proposer.buffer import ModePool
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED, MOST_BODY, Source
from daemon.proposer.task_writer import Draft, Drafts, TaskWriter
from envs.environment import Environment
from envs.lessons.checks import follows_refusal, get_lesson
from envs.lessons.making import LessonReport, make_lessons
from envs.lessons.operators import REFUSABLE
from envs.lessons.trajectories import Trajectory
from envs.task import TaskDefinition, find_split, write_body
from events.learning import Directive
from events.privacy.sealing import Key

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

POOL: Final = ModePool(prefix="lessons: ", reward="both", most=0.5)
"""The separate pools of lessons, whose reward combines repair and verdict."""
_SOURCES: Final = 4
"""Most fresh tasks that are drawn for each lesson wanted."""


@dataclass(frozen=True, slots=True)
class LessonSupply:
    """The recordings and keys from which a cycle's lessons are made."""

    recordings: Mapping[str, Sequence[Trajectory]] = field(default_factory=dict)
    """Pattern -> usable conversations of its failed rollouts."""
    taken: frozenset[str] = frozenset()
    """Ids of tasks that were written before."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """A person's rollout -> the key that encrypts lessons made of it."""
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Pattern -> reason -> number of failed rollouts that may not be used."""

    def build_writer(self) -> TaskWriter:
        """Return the Proposer's writer that makes lessons from these sources."""
        return TaskWriter("lessons", "repair", "lesson", POOL, self.draft)

    def draft(
        self,
        environment: Environment,
        pattern: str,
        sources: Sequence[Source],
        most: int,
        seed: str,
    ) -> Drafts:
        """Return at most `most` lessons for a pattern, without those that were written before."""
        recordings = self.recordings.get(pattern, ())
        drafts = draft_lessons(environment, sources, recordings, most, seed, self.keys)
        fresh = tuple(draft for draft in drafts.tasks if draft.task.id not in self.taken)
        if fresh:
            return Drafts(fresh, "")
        trouble = drafts.trouble or (
            f"the {len(drafts.tasks)} lessons that could be made were all written before"
        )
        return Drafts((), trouble + self._describe_left_out(pattern))

    def _describe_left_out(self, pattern: str) -> str:
        """Return a clause on the pattern's failed rollouts that are not used, or ""."""
        return "".join(
            f"; failed rollouts that are not used, {count}: {reason}"
            for reason, count in self.left_out.get(pattern, {}).items()
        )


def open_writer(
    app: "App",
    environment: Environment,
    alias: str,
    cycle: str,
    directive: Directive,
    *,
    sealed: bool = False,
) -> TaskWriter:
    """Return the writer of lessons from a directive's failed rollouts; `sealed` allows persons'.
    Raise LogError, DatabaseUnavailable, KeysUnavailable, EnvironmentBroken."""
    with app.reading() as connection:
        taken = frozenset(
            row.task.id for row in learning.tasks_of(connection, alias) if row.cycle != cycle
        )
    recordings: dict[str, tuple[Trajectory, ...]] = {}
    keys: dict[str, Key] = {}
    left_out: dict[str, Mapping[str, int]] = {}
    for quota in directive.quotas:
        if any(choice.mode == "repair" for choice in quota.modes):
            reader = RecordingReader(app, alias, environment, "train", persons=sealed)
            recordings[quota.pattern] = tuple(reader.read(among=quota.examples))
            keys |= reader.keys
            left_out[quota.pattern] = reader.left_out
    return LessonSupply(recordings, taken, keys=keys, left_out=left_out).build_writer()


def read_own_pools(connection: "Connection", alias: str) -> dict[str, ModePool]:
    """Return task id of a lesson -> its pool, for all lessons of an agent."""
    return dict.fromkeys(read_lesson_tasks(connection, alias), POOL)


def draft_lessons(
    environment: Environment,
    sources: Sequence[Source],
    recordings: Iterable[Trajectory],
    most: int,
    seed: str,
    keys: Mapping[str, Key] | None = None,
) -> Drafts:
    """Return at most `most` lessons. `sources` are failed rollouts to follow, at least one, and
    `recordings` their conversations; `keys` (rollout -> key) encrypt persons' lessons."""
    recorded = tuple(recordings)
    origins = {item.source: Source(item.rollout or "", item.task) for item in recorded}
    chance = Random(f"lessons {seed}")
    report = make_lessons(
        environment,
        _draw_tasks(environment, sources, chance, _SOURCES * most, origins),
        most,
        chance.getrandbits(32),
        recorded,
        REFUSABLE,
    )
    lessons = []
    unfit: Counter[str] = Counter()
    for task, key in seal_lessons(report.lessons, keys or {}).values():
        lesson = get_lesson(task)
        if not follows_refusal(task):
            unfit["begin behind a call that no tool refused"] += 1
        elif len(write_body(task.dump_body())) > MOST_BODY:
            unfit[f"have more than {MOST_BODY:,} bytes"] += 1
        else:
            origin = origins[lesson.source]
            source = Source(lesson.rollout or origin.rollout, origin.task)
            lessons.append(Draft(task, source, key))
    if lessons:
        return Drafts(tuple(lessons), "")
    # An error that the environment raised may quote the conversation.
    is_open = not any(item.rollout in (keys or {}) for item in recorded)
    return Drafts((), _explain_none(report, unfit, is_open=is_open))


def _draw_tasks(
    environment: Environment,
    sources: Sequence[Source],
    chance: Random,
    most: int,
    origins: dict[str, Source],
) -> Iterator[TaskDefinition]:
    """Yield fresh training tasks like the failed ones; enter each task's source into `origins`."""
    for _ in range(most):
        source, seed = chance.choice(sources), chance.randint(FIRST_SEED, LAST_SEED)
        task = environment.like(source.task, seed)
        if task is not None and find_split(task.id) == "train":
            origins[task.id] = Source(source.rollout, task)
            yield task


def _explain_none(report: LessonReport, unfit: Mapping[str, int], *, is_open: bool) -> str:
    reasons = [*(report.troubles if is_open else ()), *report.unused]
    reasons += [f"{count} {why}" for why, count in unfit.items()]
    reasons += [reason for counts in report.discarded.values() for reason in counts]
    why = "; ".join(dict.fromkeys(reasons)) or "no task like the failed ones could be drawn"
    return f"no lesson could be made: {why}"
