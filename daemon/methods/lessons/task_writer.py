"""Write lessons for the failure patterns of a cycle: what the Proposer asks for tasks of the mode
`repair`.

    writer = open_writer(app, environment, alias, cycle, directive)
    writer.draft(environment, pattern, sources, most, seed)

Guarantee: a lesson that an earlier cycle wrote is not written again. Not covered: the checks
(verification.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.methods.lessons.reads import read_lesson_tasks
from consumers.reads import learning
from daemon.methods.lessons.drafts import draft_lessons
from daemon.methods.lessons.writer import RecordingReader
from daemon.proposer.buffer import ModePool
from daemon.proposer.candidate import Source
from daemon.proposer.task_writer import Drafts, TaskWriter
from envs.environment import Environment
from envs.lessons.trajectories import Trajectory
from events.learning import Directive
from events.privacy.sealing import Key

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

POOL: Final = ModePool(prefix="lessons: ", reward="both", most=0.5)
"""The pools of lessons: they are rewarded for the repair too."""


@dataclass(frozen=True, slots=True)
class LessonSupply:
    """What the lessons of a cycle are made of, and what must be known of them."""

    recordings: Mapping[str, Sequence[Trajectory]] = field(default_factory=dict)
    """Pattern -> conversations of its failed rollouts, which may be used."""
    taken: frozenset[str] = frozenset()
    """Tasks that were written before, by id: they are not written again."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Rollout of a person -> the key that seals what is made of it."""
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Pattern -> reason -> failed rollouts of it that may not be used."""

    def build_writer(self) -> TaskWriter:
        """Return the writer that makes lessons of this."""
        return TaskWriter("lessons", "repair", "lesson", POOL, self.draft)

    def draft(
        self,
        environment: Environment,
        pattern: str,
        sources: Sequence[Source],
        most: int,
        seed: str,
    ) -> Drafts:
        """Return at most `most` lessons for a pattern that were not written before."""
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
        """Return the reasons for which failed rollouts of a pattern may not be used, as a clause;
        empty where all may."""
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
    """Return the writer of the lessons of a cycle: it uses what was said in the failed rollouts
    that the directive names for the patterns which it wants lessons for; `sealed`: also in those of
    persons. Raises LogError, DatabaseUnavailable, KeysUnavailable, EnvironmentBroken."""
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
    """Return lesson -> its pool, of all lessons that an agent has."""
    return dict.fromkeys(read_lesson_tasks(connection, alias), POOL)
