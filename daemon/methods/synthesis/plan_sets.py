"""Choose the set of plans by which a pattern's next tasks are written.

If the log already has a set of this cycle, from a killed leader, the cycle keeps it. Otherwise the
newest fitting set of the agent, base, environment and pattern is used again. Its counts and
revisions are read up to offset `before` of the stream `learning`, where the cycle began. A set
without further rounds is used only while the checks accept half of its tries.

A set does not fit if the environment no longer allows one of its plans, or has a new tool. Nor does
it fit if no plan is of a kind that fails now, or if a new set may have at least twice its plans.
Without a fitting set a new one is written.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.methods.synthesis.history import PlanFailure, PlanPast, SetPast, read_plan_history
from consumers.methods.synthesis.plans import PlanSetLine, list_plan_sets
from daemon.methods.synthesis.cells import list_tools
from daemon.methods.synthesis.planner import find_plan_problem
from daemon.methods.synthesis.protocols import Failure, PlanHistory
from daemon.methods.synthesis.stages import name_plan_set
from events.codec import decode
from events.learning import PlanName
from events.log import read_all
from events.streams import LEARNING
from events.synthesis.plans import MOST_ROUNDS, Aspect, PlansRevised, PlansWritten

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.learning import CycleRow
    from daemon.core.app import App
    from envs.environment import Environment

ACCEPTABLE: Final = 0.5
"""Least accepted share of the tries, for a set without further revisions to be used."""

_PLAN_EVENTS: Final = (PlansWritten.TYPE, PlansRevised.TYPE)


@dataclass(frozen=True, slots=True)
class SetChoice:
    """The set of plans by which a cycle writes a pattern's tasks."""

    past: SetPast | None
    """The earlier set to use again; None if a new one is to be written, or for `written`."""
    refusal: str = ""
    """Why the newest set is not used again; "" if it is, or if there is none."""
    written: PlansWritten | None = None
    """The set that this cycle wrote before its leader was killed, from the log."""


@dataclass(frozen=True, slots=True)
class SetDemand:
    """The demand of a cycle on an earlier set that is used again."""

    plans: int = 1
    """Most plans of a new set."""
    kinds: Collection[str] = ()
    """Kinds of the tasks that failed; empty for all kinds of the environment."""
    rounds: int = MOST_ROUNDS
    """Most rounds that revise a set (`improve.synthesis_rounds`)."""


_NEWEST: Final = 8
"""Most sets of a pattern that are considered: kinds that fail in turn have a set each."""
_NO_DEMAND: Final = SetDemand()


def choose_set(
    app: "App",
    connection: "Connection",
    environment: "Environment",
    cycle: "CycleRow",
    pattern: str,
    before: int | None,
    demand: SetDemand,
) -> SetChoice:
    """Return a cycle's set for a pattern; `before` is None if not in the log. Raise LogError."""
    own = name_plan_set(cycle.cycle, pattern)
    lines = list_plan_sets(connection, cycle.alias, cycle.base)
    for line in lines:
        if line.plans == own:
            return SetChoice(None, written=_read_set(app, line))
    lines = [
        line
        for line in lines
        if line.environment == environment.name
        and (not line.patterns or pattern in line.patterns)
        and (before is None or line.offset < before)
    ]
    refusals = []
    for line in lines[: -_NEWEST - 1 : -1]:
        past = read_plan_history(connection, line, before, lambda line: find_set_events(app, line))
        refusal = explain_refusal(environment, past, demand)
        if not refusal:
            return SetChoice(past)
        refusals.append(refusal)
    return SetChoice(None, refusals[0] if refusals else "")


def explain_refusal(
    environment: "Environment", past: SetPast, demand: SetDemand = _NO_DEMAND
) -> str:
    """Return why an earlier set of plans is not used again, or ""."""
    reason = _find_refusal(environment, past, demand)
    return f"plans {past.line.plans} are not used again: {reason}" if reason else ""


def _find_refusal(environment: "Environment", past: SetPast, demand: SetDemand) -> str:
    line = past.line
    problems = [
        problem
        for plan in past.plans
        if (problem := find_plan_problem(environment, plan.plan)) is not None
    ]
    if problems:
        more = f", and of {len(problems) - 1} more plans" if problems[1:] else ""
        return f"{problems[0]}{more}"
    known = {tool for plan in past.plans for tool in plan.plan.tools} | set(line.uncovered)
    added = sorted(set(list_tools(environment)) - known)
    if added:
        return (
            f"{environment.name} has tools that were not there when they were written: "
            f"{', '.join(added)}"
        )
    kinds = {plan.plan.kind for plan in past.plans}
    if demand.kinds and None not in kinds and not kinds & set(demand.kinds):
        return (
            f"they are of {', '.join(sorted(filter(None, kinds)))}, and the tasks that fail now "
            f"are of {', '.join(sorted(demand.kinds))}"
        )
    # `trouble` says why there were not more plans, so a new set may not have more either.
    if not line.trouble and 2 * len(past.plans) <= demand.plans:
        return f"they are {len(past.plans)}, and {demand.plans} may be written now"
    tries = sum(plan.tries for plan in past.plans)
    accepted = sum(plan.accepted for plan in past.plans)
    stopped = line.stopped
    if not stopped and line.rounds >= demand.rounds:
        stopped = f"improve.synthesis_rounds is {demand.rounds}"
    if stopped and accepted < ACCEPTABLE * tries:
        return (
            f"no round of revisions follows ({stopped}), and {accepted} of their {tries} tries "
            "were accepted"
        )
    return ""


def find_set_events(app: "App", line: PlanSetLine) -> list[tuple[int, PlansWritten | PlansRevised]]:
    """Return a set's events with their offsets in `learning`, each once. Raise LogError."""
    log, events, seen = app.readable_log, [], set[str]()
    (end,) = log.end(LEARNING.name)
    for page in read_all(log, LEARNING.name, 0, line.offset, end):
        for record in page:
            event = decode(record)
            if event.envelope.type not in _PLAN_EVENTS or event.envelope.id in seen:
                continue
            data = app.bodies.whole(record).event.data
            if isinstance(data, PlansWritten | PlansRevised) and data.plans == line.plans:
                seen.add(event.envelope.id)
                events.append((record.offset, data))
    return events


def _read_set(app: "App", line: PlanSetLine) -> PlansWritten:
    """Return the event that recorded a set of plans at first. Raise LogError."""
    return next(data for _, data in find_set_events(app, line) if isinstance(data, PlansWritten))


def build_history(past: SetPast) -> list[PlanHistory]:
    """Return a set's plans, each with the counts and failures of its tries."""
    return [
        PlanHistory(
            name=PlanName(plans=past.line.plans, plan=plan.plan.plan, revision=plan.revision),
            plan=plan.plan,
            tries=plan.tries,
            accepted=plan.accepted,
            failures=_build_failures(plan),
            refused=tuple(plan.refused),
        )
        for plan in past.plans
    ]


def _build_failures(plan: PlanPast) -> Sequence[Failure]:
    return [
        Failure(
            failure.event,
            _find_aspect(failure),
            failure.check or "opinion",
            failure.reason,
            failure.instruction,
        )
        for failure in plan.failures
        if failure.fault != "trajectory" or failure.agrees is False
    ]


def _find_aspect(failure: PlanFailure) -> Aspect:
    """Return which part of a plan a failure is evidence against (protocols.Failure)."""
    if failure.fault is None and failure.agrees is None:
        return "writing"
    if failure.fault in ("task", "user"):
        return "writing" if failure.fault == "task" else "rollout"
    return "judging"
