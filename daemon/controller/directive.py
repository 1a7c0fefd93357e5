"""The directive: the weaknesses that the next tasks practise, as data and in words. Pure. An
analyzer's finding describes a pattern and never sets its quota: only rounds set priorities."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from consumers.diagnosis.priority import Status
from consumers.reads.evidence import RoundRollout, TaskRate
from consumers.reads.rollouts import PatternLine
from daemon.controller.places import Client, divide_places
from daemon.controller.refusals import Refusals
from events.learning import (
    BadTries,
    ClientPart,
    Directive,
    Mastered,
    ModeChoice,
    PatternFinding,
    Quota,
)
from events.messages import Action

MASTERED: Final = 0.85
"""Least smoothed pass rate of a kind of task for the agent to count as mastering it."""
MASTERED_KINDS: Final = 12
"""Most mastered kinds that a directive lists."""
EXAMPLES: Final = 8
"""Failed rollouts per pattern that a directive names for new tasks to follow. Each API key with
places has at least one, so many keys may raise the number."""
REPAIRED: Final = 0.5
"""Share of a quota that has the mode `repair`, if the pattern's failures hold refused calls. The
other half practises to avoid the failing call."""
OTHER_FAILURES: Final = 4
"""Least failures of a pattern on unmastered kinds at which those on mastered kinds are dropped."""

_MEANINGS: Final[Mapping[str, str]] = {
    "context_overflow": "The conversation grew beyond what the agent can read.",
    "tool_loop": "The agent made the same call again and again.",
    "user_id_failure": "The agent never reached the user's record.",
    "policy_violation": "The agent did what its policy does not allow.",
    "wrong_tool": "The agent used another tool than the one that was called for.",
    "wrong_entity": "The agent changed another record than the one that was meant.",
    "wrong_item_selection": "The agent chose something else than what was asked for.",
    "incorrect_arguments": "The agent called the right tool with wrong arguments.",
    "over_cautious": "The agent refused, or handed over, what it should have done.",
    "premature_termination": "The agent stopped before it was done.",
    "missing_write_action": "The agent did not make a change that was asked for.",
    "information_error": "The agent did not say what it had to say.",
}


@dataclass(frozen=True, slots=True)
class Failures:
    """The sampled failed rollouts of a round that show one failure pattern."""

    pattern: str
    rollouts: tuple[str, ...]
    clients: Mapping[Client, "ClientFailures"] = field(default_factory=dict)
    """API key -> its failures; empty if keys are not told apart."""


@dataclass(frozen=True, slots=True)
class ClientFailures:
    """The failures of one pattern in the sessions of one client's API key."""

    count: int
    examples: tuple[str, ...]
    """Sampled rollouts among these failures."""


def directive(
    patterns: Iterable[PatternLine],
    failures: Iterable[Failures],
    findings: Sequence[PatternFinding],
    rates: Iterable[TaskRate],
    bad_tries: Iterable[BadTries],
    most: int,
    refusals: Mapping[str, Refusals] | None = None,
    planned: Mapping[str, str] | None = None,
    usable: Mapping[Client, int] | None = None,
) -> Directive:
    """Return the directive: at most `most` tasks, divided among `patterns`.

    All `patterns` must belong to one agent (alias and base model). `refusals` is pattern -> its
    refused calls in the round; None excludes the mode `repair`. `planned` is pattern -> why plans
    write its tasks. `usable` is API key -> failures of the round that tasks can follow; None if
    keys are not told apart.
    """
    lines = {line.pattern: line for line in patterns}
    by_pattern = {item.pattern: item for item in failures}
    places = divide_places(
        {name: line.priority for name, line in lines.items()},
        {name: _count_claims(by_pattern.get(name)) for name in lines},
        usable or {},
        most,
    )
    counts = {name: sum(of_pattern.values()) for name, of_pattern in places.items()}
    parts = _divide_examples(places, by_pattern)
    examples = {
        name: tuple(chain.from_iterable(part.examples for part in parts[name]))
        if name in parts
        else item.rollouts
        for name, item in by_pattern.items()
    }
    descriptions = words_of(counts, findings, examples)
    bad = tuple(item for item in bad_tries if item.pattern in counts)
    paused = {item.pattern for item in bad if item.mode == "repair"}
    repairable = {name: item for name, item in (refusals or {}).items() if name not in paused}
    return Directive(
        quotas=tuple(
            _quota(lines[name], tasks, examples.get(name), descriptions.get(name)).model_copy(
                update={
                    "modes": choose_modes(tasks, repairable.get(name), (planned or {}).get(name)),
                    "clients": parts.get(name, ()),
                }
            )
            for name, tasks in counts.items()
        ),
        mastered=find_strengths(rates)[:MASTERED_KINDS],
        improving=tuple(
            sorted(
                line.pattern
                for line in lines.values()
                if line.status in (Status.IMPROVING, Status.RESOLVED)
            )
        ),
        bad_tries=bad,
    )


def _count_claims(failures: Failures | None) -> dict[Client, int]:
    if failures is None or not failures.clients:
        return {None: 1}
    return {client: own.count for client, own in failures.clients.items()}


def _divide_examples(
    places: Mapping[str, Mapping[Client, int]], failures: Mapping[str, Failures]
) -> dict[str, tuple[ClientPart, ...]]:
    """Return pattern -> the parts of its quota by API key. Each part has examples in proportion to
    its places. Return {} if all failures come from one key."""
    keys = {client for item in failures.values() for client in item.clients}
    if len(keys) < 2:
        return {}
    parts = {}
    for name, of_pattern in places.items():
        own, tasks = failures[name].clients, sum(of_pattern.values())
        parts[name] = tuple(
            ClientPart(
                client=client,
                tasks=count,
                examples=own[client].examples[: max(1, EXAMPLES * count // tasks)],
            )
            for client, count in sorted(of_pattern.items(), key=lambda item: item[0] or "")
        )
    return parts


def choose_modes(
    tasks: int, refusals: Refusals | None, planned: str | None = None
) -> tuple[ModeChoice, ...]:
    """Return the modes for `tasks` tasks: `repair` for the share `REPAIRED`, rounded down, if the
    failures hold refused calls, and `synthesize` for the rest if `planned` gives a reason."""
    repairs = int(REPAIRED * tasks)
    choices = []
    if refusals is None or not refusals.is_basis:
        repairs = 0
    if refusals is not None and repairs:
        choices.append(ModeChoice(mode="repair", tasks=repairs, reason=refusals.describe()))
    if planned is not None:
        choices.append(ModeChoice(mode="synthesize", tasks=tasks - repairs, reason=planned))
    return tuple(choices)


def words_of(
    patterns: Iterable[str],
    findings: Sequence[PatternFinding],
    examples: Mapping[str, Sequence[str]],
) -> dict[str, PatternFinding]:
    """Return pattern -> the finding that describes it: the finding of that name, else the one with
    the most of the pattern's failures as examples."""
    by_name = {finding.pattern: finding for finding in findings}
    descriptions: dict[str, PatternFinding] = {}
    for name in patterns:
        shown = by_name.get(name) or _mostly_of(set(examples.get(name, ())), findings)
        if shown is not None:
            descriptions[name] = shown
    return descriptions


def _mostly_of(rollouts: set[str], findings: Sequence[PatternFinding]) -> PatternFinding | None:
    """Return the finding with the most of these rollouts, if they are most of its examples."""
    mostly = [
        finding
        for finding in findings
        if 2 * len(rollouts & set(finding.examples)) > len(finding.examples)
    ]
    return max(mostly, key=lambda finding: len(rollouts & set(finding.examples)), default=None)


def _quota(
    line: PatternLine, tasks: int, examples: Sequence[str] | None, finding: PatternFinding | None
) -> Quota:
    return Quota(
        pattern=line.pattern,
        tasks=tasks,
        priority=line.priority,
        status=line.status,
        description=finding.description if finding else _describe(line),
        root_cause=finding.root_cause if finding else "",
        examples=tuple(examples if examples else line.examples),
    )


def _describe(line: PatternLine) -> str:
    tool = f" The change that it is about is {line.pivot}." if line.pivot != "*" else ""
    return f"{_MEANINGS[line.category]}{tool}"


def find_strengths(rates: Iterable[TaskRate]) -> tuple[Mastered, ...]:
    """Return the kinds of task that the agent masters, the most often attempted kind first."""
    attempts: Counter[str] = Counter()
    passes: defaultdict[str, int] = defaultdict(int)
    for rate in rates:
        if rate.gold is None:
            continue
        kind = name_kind(rate.gold)
        attempts[kind] += rate.attempts
        passes[kind] += rate.passes
    ranked = sorted(attempts, key=lambda kind: (-attempts[kind], kind))
    smoothed = {kind: (passes[kind] + 1) / (attempts[kind] + 2) for kind in ranked}
    able = [kind for kind in ranked if smoothed[kind] >= MASTERED]
    return tuple(Mastered(task=kind, pass_rate=smoothed[kind]) for kind in able)


def name_kind(gold: Sequence[Action]) -> str:
    """Return the kind of a task: the tools that a perfect agent calls, each once, joined by "+"."""
    return ("+".join(dict.fromkeys(action.name for action in gold)) or "nothing")[:128]


def find_mastered_tasks(rates: Sequence[TaskRate]) -> set[str]:
    """Return the ids of the tasks whose kind the agent masters."""
    able = {entry.task for entry in find_strengths(rates)}
    return {rate.task for rate in rates if rate.gold is not None and name_kind(rate.gold) in able}


def leave_out_mastered(
    failures: Sequence[RoundRollout], mastered: Collection[str]
) -> Sequence[RoundRollout]:
    """Return one pattern's failures without those on `mastered` tasks, which are mostly chance.
    Return all if fewer than `OTHER_FAILURES` remain: a mastered kind may hide a weakness."""
    others = [failure for failure in failures if failure.task_key not in mastered]
    return others if len(others) >= OTHER_FAILURES else failures


def describe_directive(directive: Directive) -> str:
    """Return a text for operators that describes the directive."""
    lines = ["Write tasks for these weaknesses of the agent:"]
    for quota in directive.quotas:
        count = f"{quota.tasks} task" + ("" if quota.tasks == 1 else "s")
        lines.append(f"- {count} for {quota.pattern} ({quota.status.lower()}). {quota.description}")
        if quota.root_cause:
            lines.append(f"  Cause: {quota.root_cause}")
        if quota.modes:
            lines.append(f"  Of them {describe_modes(quota)}.")
    if directive.mastered:
        kinds = ", ".join(f"{entry.task} ({entry.pass_rate:.0%})" for entry in directive.mastered)
        lines.append(f"The agent can do this, so its failures there are hardly followed: {kinds}.")
    if directive.improving:
        lines.append(f"These improve by themselves: {', '.join(directive.improving)}.")
    for bad in directive.bad_tries:
        lines.append(
            f"Of {bad.tries} earlier tasks for {bad.pattern} by {bad.mode}, {bad.rejected} were "
            f"rejected: {'; '.join(bad.reasons)}"
        )
    return "\n".join(lines)


def describe_mode(mode: str | None, plan: str | None, revision: int | None) -> str | None:
    """Return a text with the mode by which a task is written, and its plan, if any."""
    return mode if plan is None else f"{mode} by {plan}, revision {revision}"


def describe_modes(quota: Quota) -> str | None:
    """Return a text with a quota's modes (ways to write tasks) and reasons; None without modes."""
    choices = [f"{choice.tasks} by {choice.mode}: {choice.reason}" for choice in quota.modes]
    return "; ".join(choices) or None
