"""Describe what the setting `improve.skills` does for each agent, and why not, for display.

    read_skill_practices(connection, settings)      one for each agent that was seen

It asks the rules of the next cycle (choice.py, retraining.py), and decides nothing.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consumers.methods.skills.measures import SkillState
from consumers.methods.skills.reads import read_comparisons, read_skills
from consumers.reads import agents
from daemon.cycle.branches import BranchChoice
from daemon.methods.skills.choice import read_skill_histories
from daemon.methods.skills.retraining import Retraining, explain_limit, read_retraining

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.methods.skills.reads import SkillComparisonLine, SkillLine
    from daemon.config.settings import Settings


@dataclass(frozen=True, slots=True)
class SkillPractice:
    """The state of skills for an agent."""

    alias: str
    base: str
    setting: str
    """`improve.skills`."""
    lacking: tuple[str, ...]
    """Those that are selected, the largest contrast first."""
    says: str
    """What the last comparison showed, or why there is none, as a sentence."""
    taught: tuple[str, ...] = ()
    """Those that the next cycle trains for, the members of another base's panel before others; none
    unless `setting` is `panel`."""
    untaught: dict[str, str] = field(default_factory=dict)
    """Other members of such a panel, and others of `lacking` -> why not, where `setting` is
    `panel`."""


def read_skill_practices(connection: "Connection", settings: "Settings") -> list[SkillPractice]:
    """Return the practice of each agent that was seen, by alias."""
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
    """The choice of the next cycle: nothing else while members of another base's panel wait."""
    if not retraining.waiting:
        return choice
    members = {member.skill for member in retraining.waiting}
    reason = "the members of the panel of another base come first"
    waiting = {branch.name: reason for branch in choice.branches if branch.name not in members}
    return BranchChoice((), {**choice.left, **waiting})


def _describe_retraining(retraining: Retraining, settings: "Settings", base: str) -> str:
    """Return a clause for each member of another base's panel: why it is retrained, or why not."""
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
