"""The account of a finished cycle: its stages, its points, and the stage that limits (pure).

    build_account(facts) -> CycleAccount

Each stage has its figures (stages.py), what it lost (balance.py), a verdict and one sentence.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from daemon.cycle.account.balance import (
    LEAST,
    STAGES,
    Balance,
    Limit,
    Stage,
    StageVerdict,
    describe_points,
    find_limit,
    judge_stage,
    measure_balance,
)
from daemon.cycle.account.facts import CycleFacts
from daemon.cycle.account.stages import (
    UNKNOWN,
    Canary,
    Diagnosis,
    Gate,
    Learner,
    Tasks,
    describe_canary,
    describe_diagnosis,
    describe_gate,
    describe_learner,
    describe_tasks,
)
from envs.statistics import Interval
from events.learning import CycleOutcome

NOT_SHOWN: Final = "not shown"
"""Key of the count of cycles whose limit is not shown; the next two are such keys too."""
NOTHING_LOST: Final = "nothing lost"
NOT_MEASURED: Final = "not measured"

Figures = Diagnosis | Tasks | Learner | Gate | Canary


@dataclass(frozen=True, slots=True)
class StageAccount:
    """One stage of a cycle."""

    lost: Interval | None
    """Points of all traffic's pass^1; None where they are not measured."""
    verdict: StageVerdict
    because: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class CycleAccount:
    """Where the gain of a finished cycle went."""

    cycle: str
    alias: str
    base: str
    number: int
    outcome: CycleOutcome
    ended_because: str
    stages: Mapping[Stage, StageAccount]
    balance: Balance
    limit: Limit

    @property
    def limit_name(self) -> str:
        """The stage that limits; where none is named, why."""
        if self.limit.stage is not None:
            return self.limit.stage
        names = {"nothing_lost": NOTHING_LOST, "not_measured": NOT_MEASURED}
        return names.get(self.limit.verdict, NOT_SHOWN)


def build_account(facts: CycleFacts) -> CycleAccount:
    """The account of a finished cycle."""
    row = facts.row
    assert row.outcome is not None, "only a finished cycle has an account"
    balance = measure_balance(facts)
    limit = find_limit(balance)
    diagnosis, tasks = describe_diagnosis(facts), describe_tasks(facts)
    learner, gate, canary = describe_learner(facts), describe_gate(facts), describe_canary(facts)
    figures: dict[Stage, Figures] = {
        "diagnosis": diagnosis, "tasks": tasks, "learner": learner, "gate": gate, "canary": canary,
    }  # fmt: skip
    because: dict[Stage, str] = {
        "diagnosis": _explain_diagnosis(facts, diagnosis),
        "tasks": _explain_tasks(facts, tasks),
        "learner": _explain_learner(learner),
        "gate": _explain_gate(facts, gate, balance),
        "canary": _explain_canary(facts, canary),
    }
    stages = {
        stage: StageAccount(
            lost=balance.lost[stage],
            verdict=judge_stage(stage, balance, limit, reached=is_reached(stage, facts)),
            because=because[stage],
            figures=figures[stage],
        )
        for stage in STAGES
    }
    return CycleAccount(
        cycle=row.cycle, alias=row.alias, base=row.base, number=row.number, outcome=row.outcome,
        ended_because=row.ended_because or "", stages=stages, balance=balance, limit=limit,
    )  # fmt: skip


def build_document(account: CycleAccount) -> dict[str, Any]:
    """The account as JSON."""
    names = ("cycle", "alias", "base", "number", "outcome", "ended_because")
    points = asdict(account.balance)
    del points["lost"]
    return {
        **{name: getattr(account, name) for name in names},
        "limit": asdict(account.limit),
        "points": points,
        "stages": {
            name: {
                "lost": None if stage.lost is None else asdict(stage.lost),
                "verdict": stage.verdict,
                "because": stage.because,
                **asdict(stage.figures),
            }
            for name, stage in account.stages.items()
        },
    }


def is_reached(stage: Stage, facts: CycleFacts) -> bool:
    """Whether a cycle came to a stage."""
    row = facts.row
    match stage:
        case "diagnosis":
            return row.round is not None
        case "tasks":
            return row.directive is not None and bool(row.directive.quotas)
        case "learner":
            return facts.job is not None
        case "gate":
            return facts.adapter is not None
        case "canary":
            return facts.canary is not None


def count_limits(accounts: Iterable[CycleAccount]) -> dict[str, int]:
    """Stage, or why none is named -> the cycles that it limited; each stage is there."""
    counts = Counter(account.limit_name for account in accounts)
    others = (NOT_SHOWN, NOT_MEASURED, NOTHING_LOST)
    return {
        **{stage: counts[stage] for stage in STAGES},
        **{name: counts[name] for name in others if counts[name]},
    }


def _explain_diagnosis(facts: CycleFacts, figures: Diagnosis) -> str:
    if figures.round is None:
        return f"no round was closed: {facts.row.ended_because}"
    if not figures.judged:
        return f"the round has no judged rollout of {facts.row.alias}, {figures.unjudged} unjudged"
    if not facts.quotas:
        return facts.row.ended_because or "the directive gave no pattern a task"
    if not figures.weakest:
        return "no failed rollout of the round has a kind"
    lacking = ", ".join(figures.without_quota)
    return _explain_ranking(figures) + (f"; no task for {lacking}" if lacking else "")


def _explain_ranking(figures: Diagnosis) -> str:
    """Which kinds fail most, and which is ranked first."""
    weakest = ", ".join(figures.weakest)
    first = figures.ranked_first
    if first is None:
        return f"most failures: {weakest}; the kind of the first pattern is {UNKNOWN}"
    if len(figures.weakest) > 1:
        return f"most failures, none shown to have fewer: {weakest}; {first} is ranked first"
    place = "ranked first" if figures.weakest_first else f"not ranked first, {first} is"
    return f"{weakest} fails most and is {place}"


def _explain_tasks(facts: CycleFacts, figures: Tasks) -> str:
    counts = f"{figures.written} written, {figures.rejected} rejected"
    if facts.job is None:
        return f"{counts}; no job: {facts.row.ended_because}"
    easier = [kind.kind for kind in figures.kinds if kind.easier]
    text = f"{counts}; "
    if easier:
        text += f"easier than the traffic of {', '.join(easier)}"
    elif any(kind.easier is False for kind in figures.kinds):
        text += "not shown to be easier than the traffic of their kinds"
    else:
        text += "how hard they are beside the traffic is not recorded"
    starved = [kind.kind for kind in figures.kinds if kind.starved]
    if starved:
        text += f"; few rollouts for {', '.join(starved)}"
    if figures.passed_share is not None:
        text += f"; {figures.passed_share:.0%} of the job's rollouts in groups that all passed"
    return text


def _explain_learner(figures: Learner) -> str:
    if figures.job is None:
        return "no job was requested"
    what = f"{figures.outcome}, {figures.steps or 0} steps, {figures.rollouts or 0:,} rollouts"
    reason = f": {figures.reason}" if figures.reason else ""
    targets = [pool for pool in figures.pools if not pool.replay]
    if not targets:
        return f"{what}{reason}; what was sampled is not recorded"
    groups = sum(pool.groups for pool in targets)
    informative = sum(pool.informative for pool in targets)
    parts = (
        f"{sum(part.passed for part in counts)} of {sum(part.attempts for part in counts)}"
        for counts in ([pool.first for pool in targets], [pool.last for pool in targets])
    )
    text = (
        f"{what}{reason}; of the target pools {informative} of {groups} groups were informative, "
        f"and passed {' at first, '.join(parts)} at last"
    )
    left = sorted(
        ((kind.left, kind.kind) for kind in figures.kinds if (kind.left or 0.0) > LEAST),
        reverse=True,
    )
    points = ", ".join(f"{kind} {value:.1f}" for value, kind in left)
    return f"{text}; points left: {points}" if points else text


def _explain_gate(facts: CycleFacts, figures: Gate, balance: Balance) -> str:
    if figures.adapter is None:
        return "no adapter came to it"
    if figures.decision is None:
        return f"nothing was measured: {facts.row.ended_because}"
    gain = "an unknown gain" if figures.gain is None else describe_points(figures.gain)
    if facts.row.outcome == "rejected":
        checks = ", ".join(check.check for check in figures.failed)
        thrown = balance.lost["gate"]
        what = "nothing" if thrown is None or not thrown.value else describe_points(thrown)
        carried = "".join(f", carried on by cycle {number}" for number in figures.carried_on_by)
        return f"it measured {gain} and threw away {what}: {checks or 'no check'}{carried}"
    return f"it measured {gain}: {figures.decision}"


def _explain_canary(facts: CycleFacts, figures: Canary) -> str:
    if facts.canary is None:
        return "it had none"
    live = "nothing" if figures.difference is None else describe_points(figures.difference)
    count = figures.canary.attempts + figures.incumbent.attempts
    return f"{facts.row.outcome} after {figures.minutes:.0f} min, {count} judged sessions: {live}"
