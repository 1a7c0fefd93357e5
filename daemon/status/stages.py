"""The seven stops of the loop, each described in a few words (status document -> stops). Pure.

    rollout -> event -> projection -> cycle -> job -> adapter -> route

A stop needs attention if an operator has to act; a stop without work rests.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from events.envelope import parse_timestamp
from events.jobs import CHOOSER
from events.learning import BRANCH
from events.lifecycle import State

Document = Mapping[str, Any]


class Mood(StrEnum):
    """State of a stop."""

    WORKS = "works"
    RESTS = "rests"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop of the loop."""

    name: str
    mood: Mood
    headline: str
    facts: tuple[str, ...] = ()
    remedy: str | None = None
    """Action for the operator; set if the stop needs attention."""


def stops(document: Document, now: datetime) -> tuple[Stop, ...]:
    """Return all seven stops, in the order of the data flow."""
    return tuple(build(document, now) for build in _STOPS)


def ago(time: str | None, now: datetime) -> str:
    """Return the age of an event's time, in one unit."""
    if time is None:
        return "at an unknown time"
    seconds = (now - parse_timestamp(time)).total_seconds()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def _rollout(document: Document, now: datetime) -> Stop:
    gateways = document["gateways"]
    calls = sum(gateway["in_flight"] for gateway in gateways)
    sessions = sum(gateway["open_sessions"] for gateway in gateways)
    facts = (
        f"{document['unjudged']:,} unjudged",
        f"live gateways: {len(gateways)}",
        f"with adapters: {calls} calls in flight, {sessions} open sessions",
    )
    mood = Mood.WORKS if gateways else Mood.RESTS
    return Stop("rollout", mood, f"{document['rollouts']:,} rollouts", facts)


def _event(document: Document, now: datetime) -> Stop:
    at, error = document["log"]["at"], document["log"]["error"]
    if error is not None:
        return Stop("event", Mood.ATTENTION, "the log is away", (error,), "kintsugi doctor")
    streams = document["streams"]
    total = sum(of["events"] for of in streams.values())
    facts = tuple(f"{name}: {of['events']:,}" for name, of in streams.items())
    return Stop("event", Mood.WORKS if total else Mood.RESTS, f"{total:,} events", (*facts, at))


def _projection(document: Document, now: datetime) -> Stop:
    fold, letters = document["projection"], document["dead_letters"]
    lag = None if document["lag"] is None else sum(document["lag"].values())
    facts = (f"{letters:,} dead letters", *fold["halted"], *fold["gaps"])
    if fold["halted"]:
        return Stop("projection", Mood.ATTENTION, "the fold has halted", facts, "kintsugi doctor")
    if fold["gaps"]:
        return Stop("projection", Mood.ATTENTION, "a source lacks events", facts, "kintsugi ship")
    headline = "its lag is unknown" if lag is None else f"{lag:,} events behind"
    if letters:
        return Stop("projection", Mood.ATTENTION, headline, facts, "kintsugi dlq list")
    return Stop("projection", Mood.WORKS if lag is not None else Mood.RESTS, headline, facts)


def _cycle(document: Document, now: datetime) -> Stop:
    cycle, expected = document["cycle"], document["next_cycle"]
    leader = document["leader"]
    if cycle["cycle"] is not None and cycle["outcome"] is None:
        headline = f"cycle {cycle['number']} of {cycle['alias']}: {cycle['step']} next"
        facts = [f"began {ago(cycle['started'], now)}, {cycle['reason']}"]
        facts += [
            f"{job[BRANCH] or CHOOSER}: {job['state'] or job['outcome'] or 'trains'}"
            for job in cycle["jobs"]
        ]
        mood = Mood.WORKS
    else:
        headline = "one is due" if expected["due"] else "none is due"
        facts = list(expected["missing"])
        mood = Mood.WORKS if expected["due"] else Mood.RESTS
        if cycle["outcome"] is not None:
            last = f"cycle {cycle['number']} {cycle['outcome']} {ago(cycle['ended'], now)}"
            facts.append(f"{last}: {cycle['ended_because']}")
    facts += [
        f"{name} of {practice['alias']}: {practice['says']}"
        for name, practices in document["improve"].items()
        for practice in practices
        if practice["setting"] != "off"
    ]
    facts += [
        f"{agent['alias']}: {agent['unusable_text']}"
        for agent in expected["agents"]
        if agent["unusable_text"]
    ]
    facts += [
        f"patterns of {change['alias']}: {change['says']}"
        for change in (*document["rule_changes"], *document["older_verdicts"])
    ]
    facts += [
        f"users of {practice['alias']}: {practice['says']}"
        for practice in document["users"]
        if practice["setting"] != "script"
    ]
    if leader is not None and leader["seconds_left"] < 0:
        facts.append(f"the lease of {leader['holder']} ran out")
        return Stop("cycle", Mood.ATTENTION, headline, tuple(facts), "kintsugi schedule")
    facts.append("nobody leads" if leader is None else f"led by {leader['holder']}")
    return Stop("cycle", mood, headline, tuple(facts))


def _job(document: Document, now: datetime) -> Stop:
    job = document["job"]
    if job is None:
        return Stop("job", Mood.RESTS, "none yet")
    facts = []
    if job["rollouts"] is not None:
        budget = "" if job["budget"] is None else f" of {job['budget']:,}"
        facts.append(f"{job['steps']:,} steps, {job['rollouts']:,}{budget} rollouts")
    if job["reward"] is not None:
        facts.append(f"reward {job['reward']:.3f}")
    if job["outcome"] is None:
        when = f"wanted {ago(job['requested'], now)}"
        if job["waits_for"]:
            facts.append(describe_job_wait(job))
        return Stop("job", Mood.WORKS, f"trains for {job['alias']}", (*facts, when))
    headline = f"{job['outcome'].replace('_', ' ')} {ago(job['ended'], now)}"
    if job["reason"]:
        facts.append(job["reason"])
    if job["outcome"] == "failed":
        return Stop(
            "job", Mood.ATTENTION, headline, tuple(facts), f"kintsugi jobs show {job['job']}"
        )
    return Stop("job", Mood.RESTS, headline, tuple(facts))


def describe_job_wait(job: Mapping[str, Any]) -> str:
    """Return the sentence about a job whose next attempt waits for its users' model."""
    return (
        "no attempt runs: the next one waits for a slot (jobs.slots), and until the model of its "
        f"users answers at {', '.join(job['waits_for'])}"
    )


def _adapter(document: Document, now: datetime) -> Stop:
    adapters = document["adapters"]
    if not adapters:
        return Stop("adapter", Mood.RESTS, "none yet")
    newest = adapters[0]
    states = Counter(adapter["state"].replace("_", " ") for adapter in adapters)
    facts = [", ".join(f"{count:,} {state}" for state, count in states.items())]
    gate = newest["gate"]
    if gate is not None:
        facts.append(f"gate: {gate['decision']} on {gate['tasks']:,} tasks")
    headline = f"{newest['adapter']}: {newest['state'].replace('_', ' ')}"
    facts += [gate["says"] for gate in document["gates"]]
    if faults := [gate["setting"] for gate in document["gates"] if gate["setting"] is not None]:
        remedy = f"set {', '.join(dict.fromkeys(faults))}, then kintsugi work"
        return Stop("adapter", Mood.ATTENTION, headline, tuple(facts), remedy)
    moving = newest["state"] not in _RESTING
    return Stop("adapter", Mood.WORKS if moving else Mood.RESTS, headline, tuple(facts))


_RESTING: Final = frozenset((State.PROMOTED, State.REJECTED, State.ROLLED_BACK, State.UNLOADED))


def _route(document: Document, now: datetime) -> Stop:
    routes = document["routes"]
    if not routes:
        return Stop("route", Mood.RESTS, "the base answers everything")
    shares = [f"{route['adapter'] or route['base']}: {describe_share(route)}" for route in routes]
    newest = max(routes, key=lambda route: route["since"] or "")
    lifts = [describe_lift(lift) for lift in document["lift"]]
    why = f"{newest['why']} {ago(newest['since'], now)}"
    facts = tuple(fact for fact in (*shares[1:], *lifts, why, newest["reason"]) if fact)
    if not all(lift["shares_ok"] and lift["judged_ok"] for lift in document["lift"]):
        return Stop("route", Mood.ATTENTION, shares[0], facts, "kintsugi doctor")
    return Stop("route", Mood.WORKS, shares[0], facts)


def describe_share(route: Mapping[str, Any]) -> str:
    """Return a route part's share of the sessions in words."""
    if route["shadow"]:
        return "shadow"
    return f"{route['share']:.0%}{' held out' if route['holdout'] else ''}"


def describe_lift(lift: Mapping[str, Any]) -> str:
    """Describe in one line a lift since the first promotion; `lift` is a row of `read_lifts`."""
    judged = lift["holdout"]["judged"]
    if lift["difference"] is None:
        text = f"lift of {lift['alias']}: not known, {judged:,} held-out sessions are judged"
    else:
        points, low, high = (100 * lift[name] for name in ("difference", "low", "high"))
        text = (
            f"lift of {lift['alias']} since {lift['since'][:10]}: {points:+.1f} points of success "
            f"[{low:+.1f}, {high:+.1f}], {judged:,} held-out sessions are judged"
        )
    off = [
        words
        for name, words in (("shares_ok", "sessions are not held out by their shares"),
                            ("judged_ok", "its arms are not judged equally often"))
        if not lift[name]
    ]  # fmt: skip
    return "; ".join((text, *off))


_STOPS: Final[Sequence[Callable[[Document, datetime], Stop]]] = (
    _rollout, _event, _projection, _cycle, _job, _adapter, _route,
)  # fmt: skip
