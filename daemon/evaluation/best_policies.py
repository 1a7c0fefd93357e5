"""Find the best policy so far for each kind of task, from reports of passed gates (pure).

Each promotion was measured against its incumbent, and against a kind's best policy if that was not
the incumbent. The first best is the base. Another replaces it when the lower 95 % bound of their
difference, chained along the promotions with variances added, is above 0. The estimate alone would
pass lucky candidates that cost a kind a little each time: 2 of 5 chains would lose their best
policy (ADR 0051). A gap in the reports (a promotion by hand, a missing kind, other rules than
today's) restarts the chain at that promotion.
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
    """Adapter of the policy; None: the base."""
    gap: Gap
    """Success rate of the incumbent minus that of this policy."""


def find_best(
    promotions: Sequence[AdapterRow],
    incumbent: str | None,
    kinds: Iterable[str],
    rules: Mapping[str, str] | None = None,
) -> dict[str, BestPolicy]:
    """Return kind -> best policy, without kinds whose best policy is unknown or the incumbent.
    `promotions` are in order. `rules` are today's; with None, reports by any rules count."""
    best = {kind: _find_best(promotions, incumbent, kind, rules) for kind in kinds}
    return {kind: policy for kind, policy in best.items() if policy is not None}


def list_measured_kinds(promotions: Iterable[AdapterRow]) -> tuple[str, ...]:
    """Return the kinds in the reports, without the slice of tasks after a refused call."""
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
    """Policy -> its success rate minus that of the best policy."""
    for row in promotions:
        gap = None
        if rules is None or (row.gate and row.gate.rules.get(kind) == rules.get(kind)):
            gap = _measure(row, kind, None if best is None else best.adapter, gaps)
        if gap is None or gap.value - _Z * sqrt(gap.variance) > 0:
            # From here on, this policy is the best: others are compared with it if their difference
            # is known.
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
    """Return a gap whose variance is that of a normal estimate with this lower bound."""
    return Gap(value, ((value - low) / NormalDist().inv_cdf(1 - level)) ** 2)


def _chain(first: Gap, second: Gap, sign: int) -> Gap:
    """Return the sum of two differences, or with `sign` -1 the first minus the second."""
    return Gap(first.value + sign * second.value, first.variance + second.variance)
