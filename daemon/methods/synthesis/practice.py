"""Describe what plans do for each agent, with reasons, for display.

It applies the Controller's rule (choice.py) to the last cycle that wrote tasks, so it shows the
choice that the next directive would make for the same patterns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.methods.synthesis.plans import PlanCounts, PlanSetLine, list_plan_sets
from consumers.reads import agents, learning, planning
from consumers.reads.cycle_account import read_written_tasks
from daemon.methods.synthesis.choice import PatternTries, choose_patterns, count_tries

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.diagnosis.round_counts import Pair
    from daemon.config.settings import Settings


@dataclass(frozen=True, slots=True)
class PatternSynthesis:
    """Whether plans write the next tasks for a pattern."""

    pattern: str
    by_plans: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SynthesisPractice:
    """The effect of the data engine and its plans on one agent at present, for display."""

    alias: str
    base: str
    setting: str
    """Value of the setting `improve.synthesis`."""
    writer: str
    """`rules`, or the name of the model in the settings."""
    sets: int
    """Number of sets of plans on the agent's present base; the next fields count only these."""
    writers: tuple[str, ...]
    """`rules`, or the models that wrote some of the sets."""
    plans: int
    tries: int
    """Number of tries of the plans' present revisions; `accepted` counts the same tries."""
    accepted: int
    faults: Mapping[str, int]
    """Kind of fault -> number of rollouts of written tasks."""
    disagreements: int
    """Number of rollouts on which a model and the rules disagreed."""
    patterns: tuple[PatternSynthesis, ...]
    """The patterns that get tasks, the highest priority first."""
    trouble: str
    """The newest reason why a model's plans were not used."""
    says: str
    """A sentence on what plans do for the agent, or why they do nothing."""


def read_synthesis_practices(
    connection: "Connection", settings: "Settings"
) -> list[SynthesisPractice]:
    """Return the state of the data engine for each agent that was seen, ordered by alias."""
    return [
        _read_practice(connection, settings, pair) for pair in sorted(agents.present(connection))
    ]


def _read_practice(
    connection: "Connection", settings: "Settings", pair: "Pair"
) -> SynthesisPractice:
    setting = settings.improve.synthesis
    lines = list_plan_sets(connection, pair.alias, pair.base)
    tries = _read_last_tries(connection, pair)
    names = [line.pattern for line in planning.heaviest_patterns(connection, pair.alias, pair.base)]
    chosen = choose_patterns("auto" if setting == "off" else setting, names, tries)
    patterns = tuple(
        PatternSynthesis(
            name,
            setting != "off" and name in chosen,
            chosen.get(name) or tries.get(name, PatternTries()).explain_templates(),
        )
        for name in names
    )
    counts = sum((line.counts for line in lines), PlanCounts())
    trouble = next((line.trouble for line in reversed(lines) if line.trouble), "")
    says = "; ".join(
        [
            _describe_choice(setting, chosen, patterns),
            *([] if setting == "off" else [f"written by {_name_writer(settings)}"]),
            *_describe_sets(lines, counts, trouble),
        ]
    )
    return SynthesisPractice(
        alias=pair.alias, base=pair.base, setting=setting, writer=_name_writer(settings),
        sets=len(lines),
        writers=tuple(sorted({line.author for line in lines})),
        plans=sum(line.plans_count for line in lines), tries=counts.tries,
        accepted=counts.accepted, faults=counts.faults, disagreements=counts.disagreements,
        patterns=patterns, trouble=trouble, says=says,
    )  # fmt: skip


def _name_writer(settings: "Settings") -> str:
    model = settings.models.proposer
    return model.model if model.url else "rules"


def _read_last_tries(connection: "Connection", pair: "Pair") -> dict[str, PatternTries]:
    cycle = learning.wrote_last(connection, pair.alias, pair.base, but="")
    if cycle is None:
        return {}
    written = read_written_tasks(connection, cycle)
    return count_tries(written, learning.rejections_of(connection, cycle))


def _describe_choice(
    setting: str, chosen: Mapping[str, str], patterns: Sequence[PatternSynthesis]
) -> str:
    due = ", ".join(f"{name} ({reason})" for name, reason in chosen.items())
    if setting == "off":
        if not due:
            return "off"
        return f'off; improve.synthesis = "auto" would have plans write tasks for {due}'
    if due:
        return f"the next cycle has plans write tasks for {due}"
    if not patterns:
        return "waits: no failure pattern has a priority"
    reasons = ", ".join(f"{item.pattern} ({item.reason})" for item in patterns)
    return f"waits for a pattern of which the checks reject half of the tries: {reasons}"


def _describe_sets(lines: Sequence[PlanSetLine], counts: PlanCounts, trouble: str) -> list[str]:
    if not lines:
        return []
    writers = " and ".join(sorted({line.author for line in lines}))
    plans = sum(line.plans_count for line in lines)
    clauses = [
        f"{plans:,} plans by {writers}, {counts.accepted:,} of {counts.tries:,} tries accepted"
    ]
    faults = [f"{count:,} by the {fault}" for fault, count in counts.faults.items() if count]
    if faults:
        clauses.append(f"rollouts failed: {', '.join(faults)}")
    if counts.disagreements:
        clauses.append(f"a model had another opinion of {counts.disagreements:,} rollouts")
    if trouble:
        clauses.append(f"trouble: {trouble}")
    return clauses
