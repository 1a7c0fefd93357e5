"""What the panel of a cycle is made of, and the two calls by which others make it.

    gather_parts(state, incumbent)      members and router of a cycle whose adapters are settled
    gather_lesson(connection, parts, agent, job)     what a router job learns
    list_new_members(state)         the adapters of the cycle that are among them
    compose(app, parts)                 `Composer`: appends PanelComposed, once for each cycle
    teach_router(app, lesson)           `RouterTeacher`: the spec of the job that trains the router

A member of the incumbent stays one, unless an adapter for its skill passed in this cycle. An
incumbent that is no panel is no member.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from consumers.diagnosis.kinds import find_kind
from consumers.reads import learning, serving
from consumers.reads.cycle_state import BranchState, CycleState
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow
from consumers.reads.skills import read_skills
from daemon.cycle.state_machine import BranchEnd, find_branch_step
from daemon.cycle.views import build_branch_view
from daemon.proposer.buffer import SIBLINGS, TRAFFIC
from events.errors import KintsugiError
from events.jobs import JobSpec, PanelRouter
from events.serving import PanelMember

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Agent
    from daemon.core.app import App


class PanelRefusal(KintsugiError):
    """A panel that can never be composed of these parts."""


@dataclass(frozen=True, slots=True)
class PanelParts:
    """What a cycle has for its panel."""

    cycle: str
    alias: str
    base: str
    cause: str
    """Id of the event that began the cycle."""
    members: tuple[PanelMember, ...]
    """By skill."""
    router: str | None
    """The adapter that was trained to choose; None: the base does."""
    prompt: PanelRouter | None
    """What that adapter was trained on, without its name and calibration; None for the base."""


class Composer(Protocol):
    """Makes panels."""

    def __call__(self, app: "App", parts: PanelParts) -> str:
        """Append `PanelComposed` with `parts.cycle`, under an id that follows from the cycle;
        return a sentence. Raises PanelRefusal for parts of which no panel can ever be made, and
        KintsugiError for what is tried again."""


@dataclass(frozen=True, slots=True)
class RouterLesson:
    """What a job that teaches a router is made of."""

    job: str
    agent: "Agent"
    base: str
    skills: Mapping[str, str]
    """Skill -> its description, by skill."""
    tasks: Mapping[str | None, Sequence[str]]
    """Skill -> the tasks that need it; None -> tasks of the traffic that need none."""


class RouterTeacher(Protocol):
    """Makes the specs of jobs that teach routers."""

    def __call__(self, app: "App", lesson: RouterLesson) -> JobSpec:
        """Return the spec, with `teaches` router. It follows from settings and lesson alone. Raises
        NotTrainable."""


def gather_parts(state: CycleState, incumbent: AdapterRow | None) -> PanelParts:
    """Return the parts of the panel that a cycle's adapters make with those of the incumbent."""
    trained = {
        branch.job.skill: branch.adapter.adapter
        for branch in state.branches
        if branch.adapter is not None and _has_passed(branch)
    }
    panel = None if incumbent is None else incumbent.panel
    kept = {} if panel is None else {member.skill: member.adapter for member in panel.members}
    members = {**kept, **{skill: name for skill, name in trained.items() if skill is not None}}
    taught = state.router if state.router is not None and _has_passed(state.router) else None
    router = None if taught is None else taught.adapter
    prompt = None if taught is None else taught.job.spec.router
    if prompt is not None:
        # It learnt to choose among these: one that left since is answered for by the base.
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
    )


def gather_lesson(
    connection: "Connection", parts: PanelParts, agent: "Agent", job: str
) -> RouterLesson:
    """Return what a job learns that teaches the router of these parts: the tasks that each member
    was trained on are of its skill; those that it replayed of the traffic need none, but for tasks
    of generators that a member was trained on."""
    by_skill: dict[str | None, list[str]] = {}
    others: dict[str, None] = {}
    taken: set[str] = set()
    # Of tasks that two members were trained on, the newer one's skill is the pattern's now.
    for skill, made in sorted(
        _list_member_jobs(connection, parts),
        key=lambda item: "" if item[1] is None else item[1].requested or "",
        reverse=True,
    ):
        pools = () if made is None else made.spec.pools
        targets = [pool for pool in pools if not pool.replay and not pool.needs_lessons]
        tasks = [task for pool in targets for task in (*pool.tasks, *pool.references)]
        by_skill[skill] = [task for task in tasks if task not in taken]
        taken.update(tasks)
        for pool in pools:
            if pool.name in (SIBLINGS, TRAFFIC):
                others |= dict.fromkeys((*pool.tasks, *pool.references))
    generators = {find_kind(task) or task for task in taken}
    by_skill[None] = [task for task in others if (find_kind(task) or task) not in generators]
    known = {
        line.skill: line.description
        for line in read_skills(connection, parts.alias)
        if line.base == parts.base
    }
    skills = {member.skill: known.get(member.skill) or member.skill for member in parts.members}
    return RouterLesson(job, agent, parts.base, skills, by_skill)


def _list_member_jobs(
    connection: "Connection", parts: PanelParts
) -> Iterator[tuple[str, JobRow | None]]:
    """Skill of each member, and the job that left it; None for one that no job left."""
    for member in parts.members:
        row = None if member.adapter is None else serving.adapter_row(connection, member.adapter)
        job = None if row is None or row.job is None else learning.job(connection, row.job)
        yield member.skill, job


def list_new_members(state: CycleState) -> list[AdapterRow]:
    """Return the adapters of a cycle that passed the gate of a member."""
    return [
        branch.adapter
        for branch in state.branches
        if branch.adapter is not None and _has_passed(branch)
    ]


def _has_passed(branch: BranchState) -> bool:
    end = find_branch_step(build_branch_view(branch))
    return isinstance(end, BranchEnd) and end.outcome == "passed"
