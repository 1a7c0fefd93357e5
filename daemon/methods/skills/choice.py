"""Choose the skills that a cycle trains for, and report the training of each skill.

A cycle trains for a skill if the last comparison selected the skill and one of its failure patterns
has a priority above 0. Each pattern, and so each task, belongs to only one skill: the one with the
larger contrast. Once a cycle has its jobs, it keeps the skills that the jobs name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair
from consumers.methods.skills import panel_reads
from consumers.methods.skills.measures import SkillState
from consumers.methods.skills.old_members import has_panel_history, list_skill_jobs
from consumers.methods.skills.reads import SkillLine, read_skills
from consumers.reads import learning, rollouts, serving, succession
from consumers.reads.cycle_state import CycleState, read_branch
from daemon.cycle.branches import Branch, BranchChoice
from daemon.cycle.parent import KEPT, MOST_TRIES, count_tries, describe_parent, is_worth_training
from daemon.cycle.state_machine import BranchEnd, find_branch_step
from daemon.methods.skills.panel_parts import find_router_obstacle
from daemon.methods.skills.retraining import read_retraining
from events.lifecycle import State

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.learning import CycleRow, JobRow
    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Settings


def choose_skills(
    lines: Sequence[SkillLine], priorities: Mapping[str, float], most: int
) -> BranchChoice:
    """Return the choice of at most `most` skills. `priorities` is failure pattern -> priority."""
    taught: list[Branch] = []
    left: dict[str, str] = {}
    owners: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: (-line.delta, line.skill)):
        failing = [name for name in line.patterns if priorities.get(name, 0.0) > 0]
        own = tuple(name for name in failing if name not in owners)
        if own and len(taught) == most:
            left[line.skill] = f"a cycle trains for {most} skills (improve.skills_jobs)"
        elif own:
            taught.append(Branch(line.skill, own))
            owners |= dict.fromkeys(own, line.skill)
        elif failing:
            names = ", ".join(sorted({owners[name] for name in failing}))
            left[line.skill] = f"its tasks teach {names}, with a larger contrast"
        else:
            left[line.skill] = "none of its failure patterns has a priority above 0"
    return BranchChoice(tuple(taught), left)


def read_skill_histories(
    connection: "Connection", settings: "Settings", pair: Pair
) -> BranchChoice:
    """Return the skills for an agent's next cycle; none unless `improve.skills` is `panel`."""
    if settings.improve.skills != "panel":
        return BranchChoice()
    priorities = {
        line.pattern: line.priority
        for line in rollouts.pattern_lines(connection, pair.alias)
        if line.base == pair.base
    }
    lines = [
        line
        for line in read_skills(connection, pair.alias, SkillState.SELECTED)
        if line.base == pair.base
    ]
    return choose_skills(lines, priorities, settings.improve.skills_jobs)


SERVING: Final = "serving"
TRAINING: Final = "training"
WAITING: Final = "waiting"
UNTAUGHT: Final = "untaught"


@dataclass(frozen=True, slots=True)
class Teaching:
    """The training of an adapter for a skill: its state now, or its last result."""

    state: str
    """`serving` (the promoted panel has its adapter), `training`, `waiting` (the next cycle trains
    for it), `untaught`; else the outcome of its last job or the state of that job's adapter."""
    reason: str
    job: str | None
    adapter: str | None
    """The last adapter that passed the gate as a member for this skill."""


def read_skill_status(
    connection: "Connection", settings: "Settings", pair: Pair, state: SkillState | None = None
) -> dict[str, Teaching]:
    """Return the training of each skill that a comparison ever named, or of those in `state`."""
    choice = read_skill_histories(connection, settings, pair)
    retraining = read_retraining(connection, settings, pair)
    members = {member.skill: member.describe(pair.base) for member in retraining.waiting}
    route = serving.route_row(connection, pair.alias)
    name = None if route is None else route.standing.incumbent
    incumbent = None if name is None else serving.adapter_row(connection, name)
    lines = [line for line in read_skills(connection, pair.alias, state) if line.base == pair.base]
    return {
        line.skill: Teaching(WAITING, members[line.skill], None, None)
        if line.skill in members
        else _read_status(connection, settings, line, choice, incumbent)
        for line in lines
    }


def _read_status(
    connection: "Connection",
    settings: "Settings",
    line: SkillLine,
    choice: BranchChoice,
    incumbent: "AdapterRow | None",
) -> Teaching:
    trained = list_skill_jobs(connection, line.alias, line.base, line.skill)
    passed = next((row.adapter for _, row in trained if row is not None and has_passed(row)), None)
    job = trained[0][0] if trained else None
    name = None if job is None else job.job
    panel = None if incumbent is None else incumbent.composition
    member = None if panel is None else panel.find_adapter(line.skill)
    if job is not None and job.outcome is None:
        return Teaching(TRAINING, "", name, passed)
    if member is not None:
        return Teaching(SERVING, "", name, member)
    waits = any(branch.name == line.skill for branch in choice.branches)
    if job is not None and (not waits or _is_under_way(connection, job)):
        state, reason = _describe_job(connection, job)
        return Teaching(state, reason, name, passed)
    if waits:
        return Teaching(WAITING, "the next cycle trains for it", name, passed)
    return Teaching(UNTAUGHT, _explain_untaught(settings, line, choice), name, passed)


def has_passed(row: "AdapterRow") -> bool:
    return row.gate is not None and row.gate.decision == "PROMOTE"


def _is_under_way(connection: "Connection", job: "JobRow") -> bool:
    """Return whether the job's cycle is open, so that the result is not decided yet."""
    cycle = None if job.cycle is None else learning.cycle(connection, job.cycle)
    return cycle is not None and cycle.outcome is None


def _describe_job(connection: "Connection", job: "JobRow") -> tuple[str, str]:
    """Return the state of the job's adapter, else the job's outcome; and the reason."""
    branch = read_branch(connection, job)
    row, end = branch.adapter, find_branch_step(branch)
    if row is None:
        return job.outcome or TRAINING, job.reason or ""
    # A rejected adapter is soon unloaded, and that event has a reason of its own.
    reason = end.reason if isinstance(end, BranchEnd) else ""
    return row.state.value, reason or row.reason or ""


def _explain_untaught(settings: "Settings", line: SkillLine, choice: BranchChoice) -> str:
    if line.state != SkillState.SELECTED:
        return f"the last comparison did not select it ({line.state})"
    if settings.improve.skills != "panel":
        return f"improve.skills is {settings.improve.skills}; panel trains for it"
    return choice.left.get(line.skill, "")


def describe_jobs(
    connection: "Connection", settings: "Settings", state: CycleState
) -> list[dict[str, str | None]]:
    """Return the jobs of a cycle that trains for skills: `skill` (null: the router), `job` (null:
    no job can train the router), `outcome` (null: open), `adapter`, its `state`, `reason`."""
    jobs = []
    for branch in state.all_branches:
        row = branch.adapter
        end = find_branch_step(branch)
        jobs.append(
            {
                "skill": branch.job.branch,
                "job": branch.job.job,
                "outcome": branch.job.outcome,
                "adapter": None if row is None else row.adapter,
                "state": None if row is None else row.state.value,
                "reason": end.reason if isinstance(end, BranchEnd) else f"needs {end} next",
            }
        )
    obstacle = _explain_router_lack(connection, settings, state)
    if obstacle is not None:
        unknown = dict.fromkeys(("skill", "job", "outcome", "adapter", "state"))
        jobs.append({**unknown, "reason": obstacle})
    return jobs


def _explain_router_lack(
    connection: "Connection", settings: "Settings", state: CycleState
) -> str | None:
    """Return why a cycle whose branches have ended has no job for its router; else None."""
    ends = [find_branch_step(branch) for branch in state.branches]
    settled = all(isinstance(end, BranchEnd) for end in ends) and any(
        isinstance(end, BranchEnd) and end.outcome == "passed" for end in ends
    )
    if not settled or state.chooser is not None or not settings.improve.trains_chooser:
        return None
    return find_router_obstacle(connection, state)


def find_member_parent(
    connection: "Connection", cycle: "CycleRow", skill: str, incumbent: "AdapterRow | None"
) -> "tuple[AdapterRow | None, str | None]":
    """Return the adapter that a skill's job trains on from (None: the base). Return also the reason
    if that adapter is not a member of the incumbent, else None.

    It is the member that answers for the skill now, unless it was rejected, rolled back or
    retired since. Without a member, it is the result of the skill's last job, if that passed a
    member's gate or was rejected without harm (daemon/cycle/parent.py). Else it is the base, and
    never an adapter of another skill or of all patterns.
    """
    if incumbent is not None and incumbent.composition is not None:
        name = incumbent.composition.find_adapter(skill)
        member = None if name is None else serving.adapter_row(connection, name)
        if member is not None and skill in panel_reads.read_member_exits(connection, incumbent):
            # A gate or a person objected to it, and its weights still have the fault.
            return None, None
        if member is not None:
            return member, None
    row = succession.find_last_candidate(connection, cycle.alias, skill)
    if row is None or row.base != cycle.base or row.state is State.COLLECTED or row.gate is None:
        return None, None
    if row.incumbent != (None if incumbent is None else incumbent.adapter):
        return None, None
    if has_panel_history(connection, row.adapter):
        # Its panel was rolled back in live traffic, so nothing trains on from its weights.
        return None, None
    has_passed = row.gate.decision == "PROMOTE"
    if not (has_passed or (row.state in KEPT and is_worth_training(row.gate))):
        return None, None
    if count_tries(connection, row, None) > MOST_TRIES:
        return None, None
    if has_passed:
        return row, f"it passed the gate of a member for {skill}, and no panel with it answers"
    return row, describe_parent(row)
