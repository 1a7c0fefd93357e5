"""Which policy was best at a kind of task, by the reports of the gates that were passed (pure).

    find_best(promotions, incumbent, kinds)     kind -> its best policy, if not the incumbent

Each promotion was measured against the incumbent of its day, and where that was not the best of a
kind, against the best as well. The first policy of a kind is the base. Another takes its place when
it is shown to be better than it: when the lower 95 % bound of their difference, chained along the
promotions with variances added, is above 0. An estimate above 0 is not enough: of candidates that
cost a kind a little each time, those pass whose estimates are lucky, and 2 of 5 chains of them
would lose sight of their best policy (ADR 0051).

What the reports do not say (a promotion by hand, an adapter without a report of that kind, a report
whose verdicts were given under other rules than today's) begins the chain anew with the adapter
that was promoted then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Final

from consumers.reads.serving import AdapterRow
from daemon.evaluation.gate.levels import LEVEL
from daemon.evaluation.gate.measurements import Gap
from events.gate import AFTER_ERROR, Check, GateReport

_SLICE: Final = "slice "
_Z: Final = NormalDist().inv_cdf(1 - LEVEL)


@dataclass(frozen=True, slots=True)
class BestPolicy:
    """The best policy of a kind of task."""

    adapter: AdapterRow | None
    """None: the base."""
    gap: Gap
    """Of the incumbent to it."""


def find_best(
    promotions: Sequence[AdapterRow],
    incumbent: str | None,
    kinds: Iterable[str],
    rules: Mapping[str, str] | None = None,
) -> dict[str, BestPolicy]:
    """Kind -> its best policy; without the kinds of which the incumbent is the best, or of which
    the reports do not say how the two compare. `promotions`: in their order. `rules`: of each kind
    today, as reports have them; None: reports by any rules are read."""
    best = {kind: _find_best(promotions, incumbent, kind, rules) for kind in kinds}
    return {kind: policy for kind, policy in best.items() if policy is not None}


def list_measured_kinds(promotions: Iterable[AdapterRow]) -> tuple[str, ...]:
    """The kinds of task of which the reports say anything. Tasks that begin behind a refused call
    are none: no best policy of theirs is kept."""
    kinds: dict[str, None] = {}
    for row in promotions:
        if row.gate is None:
            continue
        slices = (check.name for check in row.gate.checks if check.name.startswith(_SLICE))
        kinds.update(dict.fromkeys(name.removeprefix(_SLICE) for name in slices))
        kinds.update(dict.fromkeys(kind for target in row.gate.targets for kind in target.kinds))
        if row.capability is not None:
            kinds.setdefault(row.capability)
    kinds.pop(AFTER_ERROR, None)
    return tuple(kinds)


def _find_best(
    promotions: Sequence[AdapterRow],
    incumbent: str | None,
    kind: str,
    rules: Mapping[str, str] | None,
) -> BestPolicy | None:
    best: AdapterRow | None = None
    gaps: dict[str | None, Gap] = {None: Gap(0.0, 0.0)}
    """Policy -> its difference to the best."""
    for row in promotions:
        gap = None
        if rules is None or (row.gate and row.gate.rules.get(kind) == rules.get(kind)):
            gap = _measure(row, kind, None if best is None else best.adapter, gaps)
        if gap is None or gap.value - _Z * sqrt(gap.variance) > 0:
            # From here on others are compared with this one, as far as their difference is known.
            gaps = {} if gap is None else {name: _chain(at, gap, -1) for name, at in gaps.items()}
            gaps[row.adapter] = Gap(0.0, 0.0)
            best = row
        else:
            gaps[row.adapter] = gap
    name = None if best is None else best.adapter
    if name == incumbent or incumbent not in gaps:
        return None
    return BestPolicy(best, gaps[incumbent])


def _measure(
    row: AdapterRow, kind: str, best: str | None, gaps: dict[str | None, Gap]
) -> Gap | None:
    """The difference of a promoted adapter to the best policy; None where it is not known."""
    if row.gate is None or row.gate.decision != "PROMOTE":
        return None
    policy = row.base if best is None else best
    for check in row.gate.checks:
        if check.name == f"best {kind}" and check.against == policy:
            return _read_check(check)
    step = _read_step(row.gate, kind, row.capability)
    if step is None or row.incumbent not in gaps:
        return None
    return _chain(step, gaps[row.incumbent], 1)


def _read_step(report: GateReport, kind: str, capability: str | None) -> Gap | None:
    """The difference of an adapter to the incumbent that it was compared with."""
    names = [f"{_SLICE}{kind}"]
    if not report.targets and capability == kind:
        names.append("target")
    for check in report.checks:
        if check.name in names:
            return _read_check(check)
    for target in report.targets:
        if set(target.kinds) == {kind}:
            return _gap(target.gain, target.low, LEVEL)
    return None


def _read_check(check: Check) -> Gap | None:
    if check.low is None:
        return None
    return _gap(check.value, check.low, LEVEL if check.level is None else check.level)


def _gap(value: float, low: float, level: float) -> Gap:
    """The variance that a bound of this level has, were it that of a normal estimate."""
    return Gap(value, ((value - low) / NormalDist().inv_cdf(1 - level)) ** 2)


def _chain(first: Gap, second: Gap, sign: int) -> Gap:
    """The sum of two differences, or with a sign of -1 the first less the second."""
    return Gap(first.value + sign * second.value, first.variance + second.variance)
