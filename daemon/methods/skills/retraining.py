"""Train the members of another base's panel again on the new base, from the tasks of their old
jobs.

An adapter is worth nothing on another base, but its tasks are kept. While `improve.skills` is
`panel`, the cycles on a new base first request a job for each member of the old panel, best first,
and from the base. Each is tried once, except if its cycle's base went away. A member whose tasks
the new base passes is not trained. Nothing is stored for this: jobs show that a skill was tried,
and rollouts of the probe show that the base passes its tasks.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair
from consumers.methods.skills.old_members import OldMember, list_skill_attempts, read_old_members
from consumers.reads import evidence, learning, serving
from daemon.cycle.estimate import JobBudget
from daemon.proposer.buffer import LEAST, RETIRED, WINDOW, PoolEntry
from daemon.proposer.candidate import CheckFailure
from daemon.proposer.verification import SAMPLES
from envs.environment import UnknownTask
from envs.evaluation import EnvironmentFailure
from events.jobs import JobSpec, TaskPool

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Settings
    from daemon.core.app import App
    from envs.environment import Environment
    from envs.task import TaskDefinition

PROBED: Final = 4
"""Most tasks per member that the new base plays, spread evenly over those that it learnt from."""


@dataclass(frozen=True, slots=True)
class Retraining:
    """The members of another base's panel: those that are trained again, and those that are not."""

    waiting: tuple[OldMember, ...] = ()
    """The members to train again, the best first."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Skill of a member that is not trained again -> the reason."""

    def describe(self, base: str) -> dict[str, str]:
        """Return skill -> why it is trained on this base, for the waiting members."""
        return {member.skill: member.describe(base) for member in self.waiting}


@dataclass(frozen=True, slots=True)
class PassCount:
    """How often a base model passes the tasks that a member was trained on."""

    passes: int
    attempts: int

    @property
    def passes_all(self) -> bool:
        """Return whether nothing is left to learn, by the rule by which tasks retire."""
        entry = PoolEntry("", "", self.attempts, self.passes)
        return self.attempts >= LEAST and entry.rate >= RETIRED

    def describe(self, base: str) -> str:
        """Return a clause that says why the skill is not trained again."""
        return f"{base} passes {self.passes} of {self.attempts} rollouts of its tasks"


def read_retraining(
    connection: "Connection", settings: "Settings", pair: Pair, cycle: str | None = None
) -> Retraining:
    """Return the members of other bases' panels that the next cycles train again; none unless
    `improve.skills` is `panel`. Jobs of `cycle` do not count, so that a restart decides alike."""
    if settings.improve.skills != "panel":
        return Retraining()
    waiting: list[OldMember] = []
    left: dict[str, str] = {}
    attempts = _list_attempts(connection, pair, cycle)
    for member in read_old_members(connection, pair.alias, pair.base, without=attempts):
        if not member.jobs:
            left[member.skill] = f"no job trained {member.adapter.adapter}, so it has no tasks"
            continue
        known = read_passes(connection, pair, member)
        if known is not None and known.passes_all:
            left[member.skill] = known.describe(pair.base)
        else:
            waiting.append(member)
    return Retraining(tuple(waiting), left)


def _list_attempts(connection: "Connection", pair: Pair, cycle: str | None) -> set[str]:
    """Return the skills that other cycles on this base tried, and those of the incumbent."""
    attempts = list_skill_attempts(connection, pair.alias, pair.base, cycle)
    route = serving.route_row(connection, pair.alias)
    name = None if route is None else route.standing.incumbent
    row = None if name is None else serving.adapter_row(connection, name)
    panel = None if row is None or row.base != pair.base else row.composition
    return attempts if panel is None else attempts | {member.skill for member in panel.members}


def list_probe_tasks(member: OldMember) -> tuple[str, ...]:
    """Return at most `PROBED` tasks of a member to probe a base: always the same, no lessons."""
    pools = [pool for job in member.jobs for pool in job.spec.target_pools]
    own = [pool for pool in pools if pool.has_verdict_reward]
    tasks = list(dict.fromkeys(task for pool in own for task in pool.all_tasks))
    count = min(PROBED, len(tasks))
    return tuple(tasks[place * len(tasks) // count] for place in range(count))


def read_passes(connection: "Connection", pair: Pair, member: OldMember) -> PassCount | None:
    """Return a base's passes on a member's probe tasks; None until each has all its samples."""
    tasks = list_probe_tasks(member)
    counts = evidence.last_outcomes(connection, pair.alias, pair.base, list(tasks), WINDOW)
    if not tasks or any(counts.get(task, (0, 0))[0] < SAMPLES for task in tasks):
        return None
    return PassCount(
        passes=sum(counts[task][1] for task in tasks),
        attempts=sum(counts[task][0] for task in tasks),
    )


def count_passes(
    sampler: "Callable[[TaskDefinition], int]", environment: "Environment", member: OldMember
) -> PassCount:
    """Return the current policy's passes on a member's probe tasks. `sampler` plays a task
    `SAMPLES` times and returns the passes. Unplayable tasks do not count. Raise CannotSample."""
    passes = attempts = 0
    for task in list_probe_tasks(member):
        try:
            passes += sampler(environment.task(task))
        except (CheckFailure, EnvironmentFailure, UnknownTask):
            continue
        attempts += SAMPLES
    return PassCount(passes, attempts)


def choose_members(
    app: "App",
    pair: Pair,
    environment: "Environment",
    members: Sequence[OldMember],
    budget: JobBudget,
    sampler: "Callable[[TaskDefinition], int] | None",
) -> tuple[dict[str, tuple[TaskPool, ...]], dict[str, str]]:
    """Return skill -> pools of the members to train again, and skill -> why another is not.
    `sampler` is as in `count_passes`; None: nothing is played. Raise CannotSample."""
    settings = app.settings
    drawn: dict[str, tuple[TaskPool, ...]] = {}
    left: dict[str, str] = {}
    for member in members:
        specs = [job.spec for job in member.jobs]
        with app.reading() as connection:
            passes = read_passes(connection, pair, member)
            drawable = read_drawable_tasks(
                connection, environment, pair.alias, list_tasks(specs),
                sealed=settings.jobs.hands_keys,
            )  # fmt: skip
        repairs = settings.improve.writes("repair")
        task_pools = build_retraining_pools(specs, drawable, repairs=repairs)
        refusal = budget.find_refusal(len(drawn))
        if not task_pools:
            left[member.skill] = "none of its tasks can be played any more"
        elif len(drawn) == settings.improve.skills_jobs:
            left[member.skill] = explain_limit(settings)
        elif refusal is not None:
            left[member.skill] = refusal
        else:
            if passes is None and sampler is not None:
                passes = count_passes(sampler, environment, member)
            if passes is not None and passes.passes_all:
                left[member.skill] = passes.describe(pair.base)
            else:
                drawn[member.skill] = task_pools
    return drawn, left


def explain_limit(settings: "Settings") -> str:
    """Return why a member waits for a later cycle."""
    return f"a later cycle: one trains for {settings.improve.skills_jobs} (improve.skills_jobs)"


def build_retraining_pools(
    specs: Sequence[JobSpec], drawable: Collection[str], *, repairs: bool
) -> tuple[TaskPool, ...]:
    """Return the pools of the job that trains a member again; () if no task is left to learn.

    `specs` are those of its old jobs, newest first. All of their targets are targets again, each in
    its last pool, since the base has learnt none of them; the replay is the newest job's. A job may
    draw only `drawable` tasks. `repairs` keeps pools that reward repairs. Targets together keep
    their share, each pool by its number of tasks; all shares sum to 1. References become ordinary
    tasks: today's settings choose the warm start.
    """
    targets: dict[str, TaskPool] = {}
    owned: dict[str, dict[str, None]] = {}
    taken: set[str] = set()
    for spec in specs:
        for pool in spec.target_pools:
            if pool.rewards_repairs and not repairs:
                continue
            tasks = [task for task in _list_tasks(pool, drawable) if task not in taken]
            taken.update(tasks)
            if tasks:
                targets.setdefault(pool.name, pool)
                # Older tasks come first, since a warm start shows a pool's last ones.
                owned[pool.name] = dict.fromkeys((*tasks, *owned.get(pool.name, ())))
    if not targets:
        return ()
    whole = sum(map(len, owned.values()))
    aimed = sum(pool.share for pool in specs[0].target_pools)
    renewed = [
        _renew(pool, tuple(owned[name]), aimed * len(owned[name]) / whole)
        for name, pool in targets.items()
    ]
    for pool in specs[0].pools:
        tasks = [task for task in _list_tasks(pool, drawable) if task not in taken]
        if pool.replay and tasks:
            renewed.append(_renew(pool, tuple(tasks), pool.share))
    total = sum(pool.share for pool in renewed)
    return tuple(pool.model_copy(update={"share": pool.share / total}) for pool in renewed)


def list_tasks(specs: Sequence[JobSpec]) -> list[str]:
    """Return every task that these jobs draw or show, each once."""
    pools = [pool for spec in specs for pool in spec.pools]
    return list(dict.fromkeys(task for pool in pools for task in pool.all_tasks))


def read_drawable_tasks(
    connection: "Connection", environment: "Environment", alias: str, tasks: Sequence[str],
    *, sealed: bool,
) -> frozenset[str]:  # fmt: skip
    """Return the tasks that jobs may draw now; `sealed`: jobs can decrypt persons' tasks."""
    left_out = set(learning.read_inactive_tasks(connection, alias))
    if not sealed:
        left_out |= learning.read_sealed_tasks(connection, alias).keys()
    return frozenset(
        task for task in tasks if task not in left_out and _is_known(environment, task)
    )


def _is_known(environment: "Environment", task: str) -> bool:
    try:
        environment.task(task)
    except UnknownTask:
        # The task is of the agent's former environment, or of a benchmark that is not installed.
        return False
    return True


def _list_tasks(pool: TaskPool, drawable: Collection[str]) -> list[str]:
    return [task for task in pool.all_tasks if task in drawable]


def _renew(pool: TaskPool, tasks: tuple[str, ...], share: float) -> TaskPool:
    """Return the pool with these tasks and this share, without what was made for the old base."""
    changes = {"tasks": tasks, "share": share, "references": (), "successes": ()}
    return pool.model_copy(update=changes)
