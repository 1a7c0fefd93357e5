"""Describe what the setting `improve.skills` does for each agent, with reasons, for display.

A member's share is its part of the sessions that its panel answered in the last day. Its gain is
the result of its own gate against the incumbent on its skill's tasks, and how many of its judged
sessions passed. Not covered: whether the base would have passed the same sessions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from consumers.methods.skills.measures import SkillState
from consumers.methods.skills.members import MemberSessions, read_member_sessions
from consumers.methods.skills.reads import read_comparisons, read_skills
from consumers.reads import agents, counts, serving
from consumers.reads.counts import Measurement
from daemon.cycle.branches import BranchChoice
from daemon.methods.skills.choice import read_skill_histories, read_skill_status
from daemon.methods.skills.retraining import Retraining, explain_limit, read_retraining
from events.envelope import timestamp

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.methods.skills.reads import SkillComparisonLine, SkillLine
    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Settings
    from daemon.core.app import App


@dataclass(frozen=True, slots=True)
class SkillPractice:
    """The result of an agent's last comparison of skills, and the skills trained next."""

    alias: str
    base: str
    setting: str
    """Value of the setting `improve.skills`."""
    lacking: tuple[str, ...]
    """The selected skills, the largest contrast first."""
    says: str
    """A sentence with the result of the last comparison, or why there is none."""
    taught: tuple[str, ...] = ()
    """Skills that the next cycle trains for, members of another base's panel first; else ()."""
    untaught: dict[str, str] = field(default_factory=dict)
    """Skill that the next cycle does not train for -> why; empty unless `setting` is `panel`."""


def read_skill_practices(connection: "Connection", settings: "Settings") -> list[SkillPractice]:
    """Return the state of skills for each agent that was seen, ordered by alias."""
    setting = settings.improve.skills
    comparisons = read_comparisons(connection)
    lines = read_skills(connection, state=SkillState.SELECTED)
    practices = []
    for pair in sorted(agents.present(connection)):
        lacking = [line for line in lines if (line.alias, line.base) == pair]
        retraining = read_retraining(connection, settings, pair)
        choice = _put_off(read_skill_histories(connection, settings, pair), retraining)
        says = _describe_skills(setting, comparisons.get(pair), lacking, choice)
        says += _describe_retraining(retraining, settings, pair.base)
        names = tuple(line.skill for line in lacking)
        members = retraining.waiting[: settings.improve.skills_jobs]
        taught = (
            *(member.skill for member in members),
            *(branch.name for branch in choice.branches),
        )
        untaught = {**retraining.left, **choice.left}
        untaught |= {
            member.skill: explain_limit(settings) for member in retraining.waiting[len(members) :]
        }
        practices.append(
            SkillPractice(pair.alias, pair.base, setting, names, says, taught, untaught)
        )
    return practices


def _put_off(choice: BranchChoice, retraining: Retraining) -> BranchChoice:
    """Return the next cycle's choice. While members of another base's panel wait, it is empty."""
    if not retraining.waiting:
        return choice
    members = {member.skill for member in retraining.waiting}
    reason = "the members of the panel of another base come first"
    waiting = {branch.name: reason for branch in choice.branches if branch.name not in members}
    return BranchChoice((), {**choice.left, **waiting})


def _describe_retraining(retraining: Retraining, settings: "Settings", base: str) -> str:
    """Return a clause on each member of another base's panel: why it is retrained, or why not."""
    most = settings.improve.skills_jobs
    clauses = [
        f"{member.skill}: {member.describe(base)}"
        + ("" if place < most else f", in {explain_limit(settings)}")
        for place, member in enumerate(retraining.waiting)
    ]
    clauses += [f"{skill} is not retrained: {reason}" for skill, reason in retraining.left.items()]
    return "".join(f"; {clause}" for clause in clauses)


def _describe_skills(
    setting: str,
    comparison: "SkillComparisonLine | None",
    lacking: "list[SkillLine]",
    choice: BranchChoice,
) -> str:
    if comparison is None:
        if setting == "off":
            return "off; kintsugi skills find compares failures and successes now"
        return "nothing was compared yet; the next cycle compares failures and successes"
    named = ", ".join(
        f"{line.skill} (contrast {line.delta:.2f}, {line.coverage:.0%} of the failures)"
        for line in lacking
    )
    says = f"lacks {named or 'none'}, as of round {comparison.round}"
    if choice.branches:
        names = ", ".join(branch.name for branch in choice.branches)
        says += f"; the next cycle trains an adapter for each of {names}"
    says += "".join(f"; none for {skill}: {reason}" for skill, reason in choice.left.items())
    return f"off; {says}" if setting == "off" else says


def read_taught_skills(app: "App", connection: "Connection") -> list[dict[str, Any]]:
    """Return each agent's selected skills and their training, the largest contrast first."""
    documents = []
    for pair in sorted(agents.present(connection)):
        taught = read_skill_status(connection, app.settings, pair, SkillState.SELECTED)
        for line in read_skills(connection, pair.alias, SkillState.SELECTED):
            if line.base == pair.base:
                own = taught[line.skill]
                names = ("skill", "alias", "base", "delta", "coverage")
                values = {name: getattr(line, name) for name in names}
                documents.append(
                    {**values, "taught": own.state, "why": own.reason, "adapter": own.adapter}
                )
    return documents


def list_member_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return title -> line about the members, for each panel in a status document."""
    return {
        f"members of {panel['panel']}": "; ".join(
            _describe_member(member, panel["base"]) for member in panel["members"]
        )
        for panel in document["panels"]
    }


def list_skill_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return title -> line about the training of skills, for each agent in a status document."""
    lines: dict[str, str] = {}
    for skill in document["skills"]:
        name = f"taught of {skill['alias']}"
        state = ", ".join(filter(None, [f"{skill['skill']} {skill['taught']}", skill["adapter"]]))
        lines[name] = "; ".join(filter(None, [lines.get(name), state]))
    return lines


def _describe_member(member: Mapping[str, Any], base: str) -> str:
    parts = [f"{member['skill'] or 'no skill'}: {member['adapter'] or base}"]
    if member["share"] is not None:
        parts.append(f"{member['share']:.0%} of the last day's sessions")
    if member["judged"]:
        parts.append(f"{member['passed']:,} of {member['judged']:,} judged passed")
    if member["gate"] is not None:
        rates = member["gate"]["incumbent_pass"], member["gate"]["candidate_pass"]
        parts.append("gate {:.1%} to {:.1%}".format(*rates))
    return ", ".join(parts)


RECENT: Final = timedelta(hours=24)
"""Period of the figures; older sessions do not count, so that the figures show the present."""


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a panel, or the base for the sessions that no member answers."""

    skill: str | None
    """None for sessions without a member: the router was in doubt, or no engine had the member."""
    adapter: str | None
    """None for the base."""
    sessions: int
    share: float | None
    """The member's share of the panel's sessions; None if the panel has none."""
    judged: int
    """Number of its sessions with a verdict."""
    passed: int
    gate: Measurement | None
    """Its last measured pass^1 and the incumbent's; None for the base or without a measurement."""


@dataclass(frozen=True, slots=True)
class PanelState:
    """A panel that answers a share of an alias' sessions."""

    alias: str
    base: str
    panel: str
    state: str
    members: tuple[MemberState, ...]
    """Members in the order of the composition; last, the base for sessions without a member."""


def read_panel_states(connection: "Connection", now: datetime) -> list[PanelState]:
    """Return the panels that answer a share of sessions, ordered by alias and name."""
    table = serving.route_table(connection)
    since = timestamp(now - RECENT)
    return [
        _read_state(connection, route.alias, row, since)
        for route in table.routes
        for name in sorted(part.adapter for part in route.standing.shares if part.adapter)
        if (row := table.adapter(name)) is not None and not row.has_files
    ]


def _read_state(connection: "Connection", alias: str, row: "AdapterRow", since: str) -> PanelState:
    sessions: dict[str | None, MemberSessions] = {}
    for own in read_member_sessions(connection, alias, row.adapter, since):
        sessions[own.skill] = own
    total = sum(own.sessions for own in sessions.values())
    adapters = row.members
    measured = counts.read_measurements(connection, filter(None, adapters.values()))

    def build(skill: str | None, adapter: str | None) -> MemberState:
        own = sessions.get(skill)
        number = 0 if own is None else own.sessions
        return MemberState(
            skill, adapter, number, number / total if total else None,
            0 if own is None else own.judged, 0 if own is None else own.passed,
            None if adapter is None else measured.get(adapter),
        )  # fmt: skip

    members = [build(skill, adapter) for skill, adapter in adapters.items()]
    members.append(build(None, None))
    return PanelState(alias, row.base, row.adapter, row.state.value, tuple(members))
