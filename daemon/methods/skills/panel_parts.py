"""Gather the parts of a cycle's panel, and the tasks that train its router.

A member of the incumbent stays unless an adapter for its skill passed in this cycle, or its own
adapter was rejected, rolled back or retired since. Then the base answers for it, as for every
session that needs no skill. An incumbent that is no panel becomes no member. Each member needs
`EXAMPLES` tasks of its own to train a router. If one has fewer, the base chooses.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.diagnosis.kinds import find_kind
from consumers.methods.skills import panel_reads
from consumers.methods.skills.reads import read_skills
from consumers.reads import learning, serving
from consumers.reads.cycle_state import CycleState, read_cycle_state
from consumers.reads.learning import CycleRow, JobRow
from daemon.cycle.proposal import RetryLater
from daemon.cycle.views import has_passed
from daemon.methods.skills.router_job import EXAMPLES
from daemon.proposer.buffer import SIBLINGS, TRAFFIC
from events.envelope import derive_id
from events.jobs import JobSpec, PanelRouter
from events.learning import JobRequested
from events.serving import PanelMember

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Agent
    from daemon.core.app import App


@dataclass(frozen=True, slots=True)
class PanelParts:
    """The parts from which a cycle's panel is composed."""

    cycle: str
    alias: str
    base: str
    cause: str
    """Id of the event that began the cycle."""
    members: tuple[PanelMember, ...]
    """The members, ordered by skill."""
    router: str | None
    """The adapter that was trained to choose; None if the base chooses."""
    prompt: PanelRouter | None
    """The router's training prompt, without its name and calibration; None for the base."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Skill of an incumbent's member that is left out -> the reason."""


Composer = Callable[["App", PanelParts], str]
"""Appends `PanelComposed` with `parts.cycle`, under an id that follows from the cycle, and returns
a sentence. Raises VersionRefusal if no panel is ever possible, and KintsugiError to try again."""


@dataclass(frozen=True, slots=True)
class RouterLesson:
    """The input of a job that trains a panel's router: skills and tasks that need them."""

    job: str
    agent: "Agent"
    base: str
    skills: Mapping[str, str]
    """Skill -> its description."""
    tasks: Mapping[str | None, Sequence[str]]
    """Skill -> the tasks that need it; None -> tasks of the traffic that need no skill."""


RouterTeacher = Callable[["App", RouterLesson], JobSpec]
"""Returns the spec of a router's job, from settings and lesson alone. Raises NotTrainable."""


def gather_parts(connection: "Connection", state: CycleState) -> PanelParts:
    """Return the parts of a cycle's panel: its own adapters, and members of the incumbent."""
    trained = {
        branch.job.branch: branch.adapter.adapter
        for branch in state.branches
        if branch.adapter is not None and has_passed(branch)
    }
    kept, left = _read_old_parts(connection, state)
    members = {**kept, **{skill: name for skill, name in trained.items() if skill is not None}}
    taught = state.chooser if state.chooser is not None and has_passed(state.chooser) else None
    router = None if taught is None else taught.adapter
    prompt = None if taught is None else taught.job.spec.router
    if prompt is not None:
        # The router learnt to choose among these skills; the base answers for a member that left.
        skills = [option.skill for option in prompt.options if option.skill is not None]
        members = {skill: members.get(skill) for skill in skills}
    return PanelParts(
        cycle=state.cycle.cycle,
        alias=state.cycle.alias,
        base=state.cycle.base,
        cause=state.cycle.event,
        members=tuple(PanelMember(skill=name, adapter=members[name]) for name in sorted(members)),
        router=None if router is None else router.adapter,
        prompt=prompt,
        left={skill: reason for skill, reason in left.items() if skill not in trained},
    )


def _read_old_parts(
    connection: "Connection", state: CycleState
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Return skill -> adapter of the incumbent's members that stay, and skill -> why one leaves."""
    name = state.incumbent
    incumbent = None if name is None else serving.adapter_row(connection, name)
    if incumbent is None or incumbent.composition is None or incumbent.base != state.cycle.base:
        return {}, {}
    left = panel_reads.read_member_exits(connection, incumbent)
    members = {member.skill: member.adapter for member in incumbent.composition.members}
    return {skill: adapter for skill, adapter in members.items() if skill not in left}, left


def find_router_obstacle(connection: "Connection", state: CycleState) -> str | None:
    """Return why no job can train the panel's router, so that the base chooses; else None."""
    panel = None if state.adapter is None else state.adapter.composition
    members = gather_parts(connection, state).members if panel is None else panel.members
    tasks = _gather_tasks(connection, members)
    short = [
        f"{member.skill} has {len(tasks[member.skill])}"
        for member in members
        if member.adapter is not None and len(tasks[member.skill]) < EXAMPLES
    ]
    if not short:
        return None
    return (
        f"no job teaches the router, for each member needs {EXAMPLES} tasks of its own, and "
        f"{', '.join(short)}; the base chooses among the members"
    )


def gather_lesson(
    connection: "Connection", parts: PanelParts, agent: "Agent", job: str
) -> RouterLesson:
    """Return the input of a router's job. Tasks that trained a member need its skill. Replayed
    tasks of the traffic need none, except those of generators that a member was trained on."""
    members = [member for member in parts.members if member.adapter is not None]
    tasks = _gather_tasks(connection, members)
    known = {
        line.skill: line.description
        for line in read_skills(connection, parts.alias)
        if line.base == parts.base
    }
    skills = {member.skill: known.get(member.skill) or member.skill for member in members}
    return RouterLesson(job, agent, parts.base, skills, tasks)


def _gather_tasks(
    connection: "Connection", members: Sequence[PanelMember]
) -> dict[str | None, list[str]]:
    """Return skill -> tasks that need only this skill, and None -> tasks that need no skill."""
    by_skill: dict[str | None, list[str]] = {}
    others: dict[str, None] = {}
    taken: set[str] = set()
    # If two members were trained on a task, its pattern belongs to the newer one's skill now.
    for skill, made in sorted(
        _list_member_jobs(connection, members),
        key=lambda item: "" if item[1] is None else item[1].requested or "",
        reverse=True,
    ):
        pools = () if made is None else made.spec.pools
        targets = [pool for pool in pools if not pool.replay and not pool.rewards_repairs]
        tasks = dict.fromkeys(task for pool in targets for task in pool.all_tasks)
        by_skill[skill] = [task for task in tasks if task not in taken]
        taken.update(tasks)
        for pool in pools:
            if pool.name in (SIBLINGS, TRAFFIC):
                others |= dict.fromkeys(pool.all_tasks)
    generators = {find_kind(task) or task for task in taken}
    by_skill[None] = [task for task in others if (find_kind(task) or task) not in generators]
    return by_skill


def _list_member_jobs(
    connection: "Connection", members: Sequence[PanelMember]
) -> Iterator[tuple[str, JobRow | None]]:
    """Yield each member's skill and the job that made its adapter; None if no job did."""
    for member in members:
        row = None if member.adapter is None else serving.adapter_row(connection, member.adapter)
        job = None if row is None or row.job is None else learning.job(connection, row.job)
        yield member.skill, job


def request_router(
    app: "App", cycle: CycleRow, agent: "Agent", teach: RouterTeacher | None
) -> JobRequested:
    """Return the request of the job that trains the router of a cycle's panel. `teach` makes its
    spec. Raise NotTrainable; raise RetryLater if `teach` is None."""
    if teach is None:
        raise RetryLater(
            f"the router of cycle {cycle.number} of {cycle.alias} waits: nothing trains routers"
            ' here; set improve.skills_router = "labels" to have the base choose'
        )
    job = derive_id("router job", cycle.cycle)
    with app.reading() as connection:
        state = read_cycle_state(connection, cycle)
        parts = gather_parts(connection, state)
        lesson = gather_lesson(connection, parts, agent, job)
    spec = teach(app, lesson)
    return JobRequested(
        job=job, cycle=cycle.cycle, alias=cycle.alias, base=cycle.base, spec=spec,
        minutes=app.settings.jobs.minutes,
    )  # fmt: skip


def compose_version(app: "App", state: CycleState, compose: Composer | None) -> Iterator[str]:
    """Compose a cycle's panel; yield sentences on the progress. The panel waits if `compose` is
    None. Raise VersionRefusal, KintsugiError."""
    cycle = state.cycle
    if compose is None:
        yield f"the panel of cycle {cycle.number} of {cycle.alias} waits: nothing composes it"
        return
    with app.reading() as connection:
        parts = gather_parts(connection, state)
    for skill, reason in parts.left.items():
        yield f"the panel of {cycle.alias} has no member for {skill} any more: {reason}"
    yield compose(app, parts)
