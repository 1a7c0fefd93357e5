"""One arm of one seed: tries by plans, what became of them, and what was planted in them (pure).

    writing = write_tasks(arm, seed, settings)
    writing.figures       counts by part of the tries, and audits of the plans
    writing.accepted      tasks with their bodies, for a job

An audit counts planted faults in fresh tasks by the plans as they stood before the first round and
after each; what is drawn is the same in all audits of an arm, so they differ in the rules alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from daemon.proposer.candidate import (
    FIRST_SEED,
    LAST_SEED,
    Candidate,
    CandidateFacts,
    CheckFailure,
)
from daemon.proposer.verification import gold, schema
from daemon.synthesis.engine import make_parts, synthesize
from daemon.synthesis.planner import plan_by_rule
from daemon.synthesis.protocols import Draft, NoTask, PlanRequest
from daemon.synthesis.stages import SynthesisRequest
from envs.environment import Environment
from envs.shop.environment import Shop
from envs.task import write_body
from events.learning import TaskProposed, TaskRejected
from events.messages import StrictModel
from events.synthesis.plans import Plan, PlansRevised, PlansWritten
from ops.learning.synthesis.planted import KINDS, FaultKind, FaultRates, FaultyWriter
from ops.learning.synthesis.settings import Arm, Settings

SOUND: Final = "sound"


class Part(StrictModel):
    """Tries between two rounds."""

    tries: Mapping[str, int]
    """Planted kind, or `sound` -> tries. Tries for which the writer gave no task are in none."""
    accepted: Mapping[str, int]
    """The same of the accepted ones."""
    empty: int
    """Tries for which the writer gave no task."""


class Round(StrictModel):
    """A round of reflection."""

    tried: int
    """Changes that were tried."""
    kept: int
    stopped: str


class Figures(StrictModel):
    """What an arm came to."""

    plans: int
    """That the planner gave."""
    parts: tuple[Part, ...]
    rounds: tuple[Round, ...]
    audits: tuple[Mapping[str, int], ...]
    """Before the first round and after each: planted kind, or `sound` -> fresh tasks."""
    checks: Mapping[str, Mapping[str, int]]
    """Check -> planted kind, or `sound` -> rejected tries."""


@dataclass(frozen=True, slots=True)
class Writing:
    """An arm's tasks."""

    figures: Figures
    accepted: Mapping[str, str]
    """Id by content -> body, in the order in which they were accepted."""


@dataclass(slots=True)
class _Ledger:
    """A writer that keeps what was planted by the number of the try (protocols.TaskWriter)."""

    writer: FaultyWriter
    planted: list[str | None] = field(default_factory=list)
    """None: the writer gave no task."""

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task by the plan. Raises NoTask."""
        self.planted.append(None)
        draft = self.writer.write(plan, seed)
        self.planted[-1] = self.writer.faults[draft.task.id] or SOUND
        return draft


def write_tasks(arm: Arm, name: str, seed: int, settings: Settings) -> Writing:
    """Return the tasks of an arm. `name` and `seed` are all that is drawn from. Raises NoPlans."""
    environment: Environment = Shop()
    rates: dict[FaultKind, float] = dict.fromkeys(KINDS, arm.kind_rate)
    writer = FaultyWriter(environment, FaultRates(rates, settings.compliance), seed)
    ledger = _Ledger(writer)
    if arm.mode == "neither":
        return _write_unverified(arm, name, environment, ledger, settings)
    return _synthesize(arm, name, environment, ledger, settings)


def _synthesize(
    arm: Arm, name: str, environment: Environment, ledger: _Ledger, settings: Settings
) -> Writing:
    bodies: dict[str, str] = {}
    environment.use_definitions(bodies.get)
    request = _make_request(arm, name, settings, bodies)
    parts = replace(make_parts(environment), writer=ledger)
    results: list[TaskProposed | TaskRejected] = []
    states: list[tuple[Plan, ...]] = []
    rounds: list[Round] = []
    for _, data in synthesize(environment, request, parts):
        if isinstance(data, TaskProposed | TaskRejected):
            results.append(data)
        elif isinstance(data, PlansWritten):
            states.append(data.entries)
        elif isinstance(data, PlansRevised):
            kept = {item.plan.plan: item.plan for item in data.revisions if item.kept}
            rounds.append(Round(tried=len(data.revisions), kept=len(kept), stopped=data.stopped))
            states.append(tuple(kept.get(plan.plan, plan) for plan in states[-1]))
    outcomes = [None if isinstance(item, TaskProposed) else item.check for item in results]
    figures = _count(settings, states, rounds, ledger.planted, outcomes)
    tasks = [item.task.id for item in results if isinstance(item, TaskProposed)]
    figures = figures.model_copy(
        update={"audits": _audit(ledger.writer, states, name, settings.audited)}
    )
    return Writing(figures, {task: bodies[task] for task in tasks})


def _make_request(
    arm: Arm, name: str, settings: Settings, bodies: dict[str, str]
) -> SynthesisRequest:
    """Return what is asked of the data engine; all arms of a name get the same plans."""
    return SynthesisRequest(
        cycle=name,
        alias="agent",
        base=settings.base,
        pattern="all",
        tasks=settings.tries,
        tries=1,
        plans=arm.plans,
        rounds=settings.rounds if arm.mode == "reflection" else 0,
        bodies=bodies,
    )


def _write_unverified(
    arm: Arm, name: str, environment: Environment, ledger: _Ledger, settings: Settings
) -> Writing:
    bodies: dict[str, str] = {}
    environment.use_definitions(bodies.get)
    request = _make_request(arm, name, settings, bodies)
    plans = plan_by_rule(environment, PlanRequest(request.plan_set, request.plans)).entries
    outcomes: list[str | None] = []
    accepted: dict[str, str] = {}
    for place in range(settings.tries):
        plan = plans[place % len(plans)]
        try:
            draft = ledger.write(plan, _draw_seed(f"unverified {name} {place}"))
        except NoTask:
            outcomes.append("synthesis")
            continue
        bodies[draft.task.id] = write_body(draft.task.dump_body())
        facts = CandidateFacts(environment, Candidate(draft.task, "synthesize", None, draft.drawn))
        try:
            schema(facts)
            gold(facts)
        except CheckFailure:
            outcomes.append("schema or gold")
            continue
        outcomes.append(None)
        accepted[draft.task.id] = bodies[draft.task.id]
    return Writing(_count(settings, [plans], [], ledger.planted, outcomes), accepted)


def _count(
    settings: Settings,
    states: Sequence[Sequence[Plan]],
    rounds: Sequence[Round],
    planted: Sequence[str | None],
    outcomes: Sequence[str | None],
) -> Figures:
    """Return the counts; `outcomes` has the check that failed of every try, None where it was
    accepted. Parts are those of a set with all rounds, also where there were fewer."""
    assert len(planted) == len(outcomes) == settings.tries, "a place has one try"
    size = -(-settings.tries // (settings.rounds + 1))
    pairs = list(zip(planted, outcomes, strict=True))
    checks: dict[str, Counter[str]] = {}
    for kind, check in pairs:
        if kind is not None and check is not None:
            checks.setdefault(check, Counter())[kind] += 1
    return Figures(
        plans=len(states[0]),
        parts=tuple(_count_part(pairs[i : i + size]) for i in range(0, len(pairs), size)),
        rounds=tuple(rounds),
        audits=(),
        checks=checks,
    )


def _count_part(pairs: Sequence[tuple[str | None, str | None]]) -> Part:
    return Part(
        tries=Counter(kind for kind, _ in pairs if kind is not None),
        accepted=Counter(kind for kind, check in pairs if kind is not None and check is None),
        empty=sum(kind is None for kind, _ in pairs),
    )


def _audit(
    writer: FaultyWriter, states: Sequence[Sequence[Plan]], name: str, count: int
) -> tuple[Counter[str], ...]:
    """Return planted faults in fresh tasks by each state of the plans. The first state is written
    by once before it is counted: a near duplicate needs an earlier task."""
    Counter(_list_planted(writer, states[0], name, count))
    return tuple(Counter(_list_planted(writer, plans, name, count)) for plans in states)


def _list_planted(
    writer: FaultyWriter, plans: Sequence[Plan], name: str, count: int
) -> Iterator[str]:
    for number in range(count):
        try:
            draft = writer.write(plans[number % len(plans)], _draw_seed(f"audit {name} {number}"))
        except NoTask:
            continue
        yield writer.faults[draft.task.id] or SOUND


def _draw_seed(text: str) -> int:
    return Random(text).randrange(FIRST_SEED, LAST_SEED + 1)
