"""Check a whole loop by the records of the log, not by the tables. No process may run on the home
any more. The first cycle must be complete. Each later cycle may have its job and its round at most
once.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from consumers.digest import digest
from consumers.reads import serving
from daemon.core.app import App
from events.codec import Event, decode
from events.learning import (
    CycleEnded,
    CycleStarted,
    DirectiveWritten,
    JobEnded,
    JobRequested,
    PatternsDiagnosed,
)
from events.log import read_stream
from events.rollouts import RolloutEnded
from events.serving import AdapterProduced, AdapterStaged, GateDecided, RouteChanged
from events.streams import LEARNING, ROLLOUTS
from ops.demo.place import ALIAS, Place
from ops.faults.gateway_audit import Book
from ops.faults.gateway_audit import read as read_calls
from ops.faults.loop_scene import CustomerLedger
from ops.faults.scene import compare_logs
from ops.processes import run_kintsugi

_BASE: Final = "reference"
_SHOWN: Final = 5


@dataclass(slots=True)
class DecisionCounts:
    """Counts of events in the stream `learning`."""

    cycles: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    directives: Counter[str] = field(default_factory=Counter)
    jobs: Counter[str] = field(default_factory=Counter)
    jobs_of: Counter[str] = field(default_factory=Counter)
    """Cycle -> number of jobs."""
    jobs_over: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, str] = field(default_factory=dict)
    produced: Counter[str] = field(default_factory=Counter)
    staged: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    routed: set[str] = field(default_factory=set)
    last_route: dict[str | None, float] = field(default_factory=lambda: {None: 1.0})
    problems: list[str] = field(default_factory=list)

    def enter(self, event: Event) -> None:
        """Count an event."""
        match event.data:
            case CycleStarted(cycle=cycle):
                self.cycles[cycle] += 1
            case PatternsDiagnosed(cycle=str(cycle)):
                self.rounds[cycle] += 1
            case DirectiveWritten(cycle=cycle, job_round=None):
                self.directives[cycle] += 1
            case JobRequested(job=job, cycle=cycle):
                self.jobs[job] += 1
                self.jobs_of[str(cycle)] += 1
            case JobEnded(job=job):
                self.jobs_over[job] += 1
            case CycleEnded(cycle=cycle, outcome=outcome):
                self.ends[cycle] += 1
                self.outcomes[cycle] = outcome
            case AdapterProduced(adapter=name):
                self.produced[name] += 1
            case AdapterStaged(adapter=name):
                self.staged.add(name)
            case GateDecided(adapter=name, report=report) if report.decision == "PROMOTE":
                self.passed.add(name)
            case RouteChanged() as changed:
                self._turn(changed)

    def _turn(self, changed: RouteChanged) -> None:
        """Store a route change. Report a problem if an adapter was not staged or passed no gate."""
        self.last_route = {part.adapter: part.share for part in changed.shares}
        for name in filter(None, self.last_route):
            self.routed.add(name)
            if name not in self.staged:
                self.problems.append(f"the route turned to {name}, which was not staged")
            if name not in self.passed:
                self.problems.append(f"the route turned to {name}, which passed no gate")


def count_decisions(app: App) -> DecisionCounts:
    """Count all events of `learning` that the folds accept."""
    counts = DecisionCounts()
    accepted: Counter[str] = Counter()
    for record in read_stream(app.log, LEARNING.name):
        # A record that a shipper repeats has an earlier sequence.
        if record.sequence == accepted[record.source]:
            accepted[record.source] += 1
            counts.enter(decode(record))
    return counts


def wrong(app: App, place: Place, heard: CustomerLedger) -> Iterator[str]:
    """Yield a sentence for every violation; `heard` has the answers that customers got."""
    app.settle()
    book, facts = read_calls(place.home), count_decisions(app)
    yield from book.problems
    yield from _check_log(app)
    yield from _check_calls(book, heard)
    yield from _check_rollouts(app)
    yield from _check_cycle(place, facts)
    yield from _check_routes(app, facts, heard)
    yield from _check_tables(app, place)


def outcome(app: App) -> str:
    """Return the outcome of the first cycle in the log; `open` without one."""
    return next(iter(count_decisions(app).outcomes.values()), "open")


def _check_log(app: App) -> Iterator[str]:
    if app.on_kafka:
        comparison = compare_logs(app.spool, app.log)
        if not comparison.equal:
            yield f"Kafka is not what the home's log is: {comparison.first_difference}"


def _check_calls(book: Book, heard: CustomerLedger) -> Iterator[str]:
    """Check that every acknowledged call has one start and one end, and that ids are unique."""
    if book.unreadable:
        yield f"{book.unreadable} events cannot be decoded"
    yield from _twice(book.ids, "events with the id")
    yield from _twice(Counter(heard.acknowledged), "answers to the call")
    for call in heard.acknowledged:
        counts = len(book.started.get(call, ())), len(book.ended.get(call, ()))
        if counts != (1, 1):
            yield f"the acknowledged call {call} has {counts[0]} starts and {counts[1]} ends"


def _check_rollouts(app: App) -> Iterator[str]:
    """Check that rollouts are unique, and that no call belongs to two."""
    rollouts, calls = Counter[str](), Counter[str]()
    for record in read_stream(app.spool, ROLLOUTS.name):
        data = decode(record, content=False).data
        if isinstance(data, RolloutEnded):
            rollouts[data.rollout] += 1
            calls.update([*data.calls, *data.forks])
    yield from _twice(rollouts, "rollouts")
    yield from _twice(calls, "rollouts with the call")


def _check_cycle(place: Place, facts: DecisionCounts) -> Iterator[str]:
    counted: Mapping[str, Counter[str]] = {
        "starts of the cycle": facts.cycles, "rounds of the cycle": facts.rounds,
        "directives of the cycle": facts.directives, "requests of the job": facts.jobs,
        "jobs of the cycle": facts.jobs_of, "ends of the job": facts.jobs_over,
        "ends of the cycle": facts.ends, "events of the adapter": facts.produced,
    }  # fmt: skip
    for what, counts in counted.items():
        yield from _twice(counts, what)
    first = next(iter(facts.cycles), None)
    if first not in facts.outcomes:
        yield f"the cycle {first} has no end"
    home = place.home / "jobs"
    folders = (
        {folder.name for folder in home.iterdir() if folder.name != "slots"}
        if home.exists()
        else {}
    )
    if set(folders) != set(facts.jobs):
        yield f"the directories of jobs are {sorted(folders)}, the log asked for {facts.jobs}"
    if not facts.jobs_of[str(first)] and facts.outcomes.get(str(first)) != "nothing_learnable":
        yield f"the cycle {first} had no job"


def _check_routes(app: App, facts: DecisionCounts, heard: CustomerLedger) -> Iterator[str]:
    """Check that only adapters in the log answered, and that the route is the log's last."""
    yield from facts.problems
    with app.reading() as connection:
        row = serving.route_row(connection, ALIAS)
    live = (
        {None: 1.0} if row is None else {part.adapter: part.share for part in row.standing.shares}
    )
    if live != facts.last_route:
        yield f"the tables route {live}, the log said {facts.last_route} last"
    if strangers := set(heard.by) - facts.routed - {_BASE}:
        yield f"{sorted(strangers)} answered, and no route names them"
    store = app.settings.adapters
    kept = (
        {folder.name for folder in store.iterdir() if folder.is_dir()}
        if store.exists()
        else set[str]()
    )
    if strangers := kept - set(facts.produced):
        yield f"the folders {sorted(strangers)} of adapters are there, and no event names them"


def _check_tables(app: App, place: Place) -> Iterator[str]:
    """Check that a rebuild gives the same rows, and the same hash as the live tables."""
    with app.reading() as connection:
        live = digest(connection)
    done = run_kintsugi(["rebuild", "--json"], place.variables)
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    if report.get("equal") is not True:
        yield f"the rebuild is not equal: {done.stdout}{done.stderr}"[:600]
    elif report["hash"] != live:
        yield f"the live hash is {live}, the rebuild's {report['hash']}"


def _twice(counts: Counter[str], what: str) -> Iterator[str]:
    for name, count in [(name, count) for name, count in counts.items() if count > 1][:_SHOWN]:
        yield f"{count} {what} {name}"
