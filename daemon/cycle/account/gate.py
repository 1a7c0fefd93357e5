"""Account for a cycle's gate: the gains that it measured, and those it rejected. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from daemon.cycle.account.balance import Balance, describe_points, measure_gate_gain
from daemon.cycle.account.estimates import estimate_mean, to_points
from daemon.cycle.account.facts import UNKNOWN, CycleFacts
from daemon.cycle.account.sampled import compute_ratio
from envs.statistics import Interval


@dataclass(frozen=True, slots=True)
class TargetGain:
    """The gain that the gate measured on one target of the candidate."""

    target: str
    kinds: Mapping[str, float]
    tasks: int
    gain: float
    """Points of pass^1; `low` is the lower bound."""
    low: float
    verdict: str
    power: float | None
    detectable: float | None
    """Smallest gain, in points, that so many tasks show with a power of 80 %."""


@dataclass(frozen=True, slots=True)
class KindGain:
    """The gain on the gate's tasks of one kind."""

    kind: str
    tasks: int
    traffic_share: float
    """The kind's share of the round's rollouts, counting only rollouts with a kind."""
    gain: Interval | None
    """Points of pass^1 on the kind's tasks."""
    traffic_gain: float | None
    """Points of pass^1 over all traffic."""


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check of the gate that the candidate failed."""

    check: str
    verdict: str
    value: float
    limit: float
    low: float | None
    tasks: int


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate's measurements of a cycle's candidate, and its decision."""

    adapter: str | None
    incumbent: str | None
    decision: str | None
    gain: Interval | None
    """Points of pass^1 over all traffic; negative for a loss."""
    unmeasured_share: float | None
    """Share of the round's rollouts whose kind has no task at the gate."""
    targets: tuple[TargetGain, ...]
    kinds: tuple[KindGain, ...]
    failed: tuple[FailedCheck, ...]
    carried_on_by: tuple[int, ...]
    """Numbers of later cycles whose jobs trained on from the candidate."""


def describe_gate(facts: CycleFacts) -> Gate:
    """Return what the gate measured for a cycle's candidate, and its decision."""
    row = facts.adapter
    report = None if row is None else row.gate
    return Gate(
        adapter=None if row is None else row.adapter,
        incumbent=None if row is None or report is None else row.incumbent or row.base,
        decision=None if report is None else report.decision,
        gain=measure_gate_gain(facts),
        unmeasured_share=_count_unmeasured_share(facts) if facts.pairs else None,
        targets=() if report is None else tuple(
            TargetGain(
                target.name, dict(target.kinds), target.tasks, 100 * target.gain, 100 * target.low,
                target.verdict, target.power,
                None if target.detectable is None else 100 * target.detectable,
            )
            for target in report.targets
        ),
        kinds=describe_gains(facts),
        failed=() if report is None else tuple(
            FailedCheck(item.name, item.verdict, item.value, item.limit, item.low, item.tasks)
            for item in report.checks
            if item.verdict != "PASS"
        ),
        carried_on_by=facts.successors,
    )  # fmt: skip


def describe_gains(facts: CycleFacts) -> tuple[KindGain, ...]:
    """Return each kind's gain at the gate, the kind with most traffic first."""
    differences: defaultdict[str, list[float]] = defaultdict(list)
    for pair in facts.pairs:
        differences[pair.kind or UNKNOWN].append(pair.candidate - pair.incumbent)
    known = facts.by_kind.total()
    rows = []
    for kind, values in differences.items():
        gain = estimate_mean(values)
        share = facts.by_kind[kind] / known if known else 0.0
        points = None if gain is None else to_points(gain)
        weighted = None if points is None or not known else share * points.value
        rows.append(KindGain(kind, len(values), share, points, weighted))
    return tuple(sorted(rows, key=lambda row: (-row.traffic_share, row.kind)))


def _count_unmeasured_share(facts: CycleFacts) -> float | None:
    played = {pair.kind for pair in facts.pairs}
    others = sum(count for kind, count in facts.by_kind.items() if kind not in played)
    return compute_ratio(others, facts.by_kind.total())


def explain_gate(facts: CycleFacts, figures: Gate, balance: Balance) -> str:
    """Return a sentence on the points that the gate measured and rejected."""
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
