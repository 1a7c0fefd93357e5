"""Test whether the candidate gains on its targets: sign-flip, group-sequential, or e-process.

The default is the exact sign-flip test on tasks: without a difference between the policies, D and
-D are equally likely (Fisher; ADR 0044). With one trial per task it is McNemar's exact test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import exp, lcm, log, sqrt
from statistics import NormalDist, mean
from typing import Final

from daemon.evaluation.gate.levels import bound, holm, holm_levels
from daemon.evaluation.gate.measurements import Evaluation
from daemon.evaluation.gate.pairs import Pair
from daemon.evaluation.gate.power import detectable
from daemon.evaluation.targets import PlannedTarget
from events.gate import GateSettings, TargetReport, Test, Verdict

LOOKS: Final = (3.466, 2.451, 2.001, 1.733)
"""Bounds of z after each quarter of the planned tasks (O'Brien and Fleming, one-sided 0.05)."""
LOOKS_ALPHA: Final = 0.05
FUTILE: Final = 0.1
"""If the power to still show `FUTILE_GAIN` is smaller at a look, the test stops without a gain."""
FUTILE_GAIN: Final = 0.05
_LEAST_P: Final = 1e-12
"""Smallest p-value that is converted to z; smaller ones would give an infinite z."""
_MOST_TRIALS: Final = 100
"""Largest number of trials per task; it bounds the denominator of a difference of pass rates."""
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class TargetResult:
    """Result of a target's test."""

    verdict: Verdict
    tasks: int
    """Number of tasks that the test used."""
    p_value: float | None = None
    e_value: float | None = None


@dataclass(frozen=True, slots=True)
class TargetEvidence:
    """A target's plan, report and test evidence."""

    plan: PlannedTarget
    report: TargetReport
    played: int
    """Number of tasks played; a test that stops early uses fewer of them."""
    e_value: float | None


def rank_evidence(result: TargetEvidence) -> tuple[bool, float]:
    """Return a sort key: targets with a shown gain come first, then smaller p-values."""
    p_value = result.report.p_value
    return result.report.verdict != "PASS", 1.0 if p_value is None else p_value


def report_targets(
    evaluation: Evaluation, settings: GateSettings, alpha: float
) -> tuple[TargetEvidence, ...]:
    """Return the test's evidence on each target, in order. Raises ValueError as `judge_targets`."""
    targets = evaluation.targets
    values = {target.name: list_differences(target, evaluation.pairs) for target in targets}
    tests = judge_targets(targets, values, settings.test, alpha)
    return tuple(
        _result(target, values[target.name], *tests[target.name], settings, alpha / len(targets))
        for target in targets
    )


def judge_targets(
    targets: Sequence[PlannedTarget], values: Mapping[str, Sequence[float]], test: Test,
    alpha: float,
) -> dict[str, tuple[TargetResult, float]]:  # fmt: skip
    """Return target -> its test result and its level; several targets share `alpha` (Holm).
    `values` holds each target's differences in task order. Raises ValueError if there is no target,
    if a target has no value, or if the test takes one target and there are several."""
    if not targets:
        raise ValueError("an evaluation has at least one target")
    if len(targets) > 1 and test != "sign_flip":
        raise ValueError(
            f"gate.test is {test}, which tests one target, and there are {len(targets)}; set it "
            "to sign_flip, or evaluate one of them"
        )
    results: dict[str, TargetResult] = {}
    for target in targets:
        if not values[target.name]:
            raise ValueError(f"no task of the target {target.name!r} was run")
        results[target.name] = verdict_of(values[target.name], target.planned, test, alpha)
    if len(targets) == 1:
        return {name: (result, alpha) for name, result in results.items()}
    # A target whose planned tasks are not all played counts in Holm's method with p = 1.
    p_values = {
        name: 1.0 if result.p_value is None else result.p_value for name, result in results.items()
    }
    levels, shown = holm_levels(p_values, alpha), holm(p_values, alpha)
    for name, result in results.items():
        if result.verdict != "EXTEND":
            results[name] = replace(result, verdict="PASS" if name in shown else "FAIL")
    return {name: (result, levels[name]) for name, result in results.items()}


def list_differences(target: PlannedTarget, pairs: Sequence[Pair]) -> list[float]:
    """Return the differences D on a target's planned tasks: of each slice, the first in `pairs`."""
    left = target.task_counts
    differences = []
    for pair in pairs:
        if left.get(pair.slice, 0) > 0:
            left[pair.slice] -= 1
            differences.append(pair.difference)
    return differences


def _result(
    target: PlannedTarget, values: Sequence[float], test: TargetResult, level: float,
    settings: GateSettings, least_level: float,
) -> TargetEvidence:  # fmt: skip
    gain = mean(values)
    verdict = test.verdict
    if verdict == "PASS" and gain < settings.min_gain:
        verdict = "FAIL"
    report = TargetReport(
        name=target.name,
        patterns=target.patterns,
        kinds=target.kinds,
        tasks=test.tasks,
        gain=gain,
        low=bound(values),
        p_value=test.p_value,
        level=level,
        verdict=verdict,
        power=None if target.plan is None else target.plan.power,
        detectable=detectable(values[: test.tasks], least_level),
    )
    return TargetEvidence(target, report, len(values), test.e_value)


def verdict_of(values: Sequence[float], planned: int, test: Test, alpha: float) -> TargetResult:
    """Return the result of `test` on one target's differences, in task order."""
    match test:
        case "sign_flip":
            return _once(values, planned, alpha)
        case "group_sequential":
            return _quarterly(values, planned, alpha)
        case "e_process":
            return _any_time(values, planned, alpha)


def _once(values: Sequence[float], planned: int, alpha: float) -> TargetResult:
    """Test the planned tasks alone, since more tasks would be a second chance. EXTEND before."""
    if len(values) < planned:
        return TargetResult("EXTEND", len(values))
    p = sign_flip(values[:planned])
    return TargetResult("PASS" if p <= alpha else "FAIL", planned, p_value=p)


def _quarterly(values: Sequence[float], planned: int, alpha: float) -> TargetResult:
    if alpha != LOOKS_ALPHA:
        raise ValueError(f"group_sequential has bounds for alpha {LOOKS_ALPHA}, not {alpha:g}")
    tasks, p = 0, 1.0
    for look, limit in enumerate(LOOKS, start=1):
        tasks = look * planned // len(LOOKS)
        if tasks == 0:
            continue  # Fewer tasks are planned than looks.
        if len(values) < tasks:
            return TargetResult("EXTEND", len(values))
        p = sign_flip(values[:tasks])
        if p <= 1 - _NORMAL.cdf(limit):
            return TargetResult("PASS", tasks, p_value=p)
        if _conditional_power(values[:tasks], look / len(LOOKS), p) < FUTILE:
            break
    return TargetResult("FAIL", tasks, p_value=p)


def _any_time(values: Sequence[float], planned: int, alpha: float) -> TargetResult:
    process = EProcess()
    for tasks, value in enumerate(values[:planned], start=1):
        process.add(value)
        if process.value >= 1 / alpha:
            return TargetResult("PASS", tasks, e_value=process.value)
    verdict: Verdict = "EXTEND" if len(values) < planned else "FAIL"
    return TargetResult(verdict, min(len(values), planned), e_value=process.highest)


def sign_flip(differences: Sequence[float]) -> float:
    """Return the exact one-sided p-value of the sign-flip test of a mean above 0 (Fisher 1935).

    It is the share of the 2^n sign choices whose sum is at least the observed one. Differences are
    fractions with small denominators, so the sums can be counted: O(n^2 r) for n tasks of r trials.
    With differences of -1, 0 and 1 it is McNemar's exact test.
    """
    whole = _integers(differences)
    ways = [1]  # ways[k]: how many subsets of the absolute differences add up to k
    for size in map(abs, whole):
        shifted = [0] * size + ways
        ways = [a + b for a, b in zip(shifted, ways + [0] * size, strict=True)]
    # A signed sum equals twice the sum of its positive terms, minus the sum of absolute values.
    least = (sum(whole) + sum(map(abs, whole)) + 1) // 2
    return sum(ways[least:]) / sum(ways)


def _integers(differences: Sequence[float]) -> list[int]:
    exact = [Fraction(value).limit_denominator(_MOST_TRIALS**2) for value in differences]
    unit = lcm(*(fraction.denominator for fraction in exact))
    return [int(fraction * unit) for fraction in exact]


def _conditional_power(values: Sequence[float], share: float, p: float) -> float:
    if share >= 1:
        return 0.0
    z = _NORMAL.inv_cdf(min(max(1 - p, _LEAST_P), 1 - _LEAST_P))
    drift = FUTILE_GAIN * sqrt(len(values) / share) / _spread(values)
    missing = LOOKS[-1] - z * sqrt(share) - drift * (1 - share)
    return 1 - _NORMAL.cdf(missing / sqrt(1 - share))


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the values and one imagined value with variance 1/4. A few
    equal values thus never give 0."""
    middle = mean(values)
    return sqrt((sum((value - middle) ** 2 for value in values) + 0.25) / len(values))


class EProcess:
    """Evidence that a mean of values between -2 and 2 is above 0, valid at any stopping time.

    The evidence is the wealth of a gambler, prod(1 + bet_i x_i), who bets on each value after the
    earlier ones: bet_i = clip(m / (v + m^2), 0, 1/2). Mean m and variance v are of the earlier
    values and one imagined value with mean 0 and variance 1/4 (Waudby-Smith and Ramdas 2024). If
    the mean is not above 0, it ever reaches 1/alpha with a chance of at most alpha (Ville).
    """

    def __init__(self) -> None:
        self._log = 0.0
        self._highest = 0.0
        self._count, self._sum, self._squares = 1, 0.0, 0.25

    @property
    def value(self) -> float:
        """Return the evidence after all values so far."""
        return exp(self._log)

    @property
    def highest(self) -> float:
        """Return the largest evidence so far."""
        return exp(self._highest)

    def add(self, value: float) -> None:
        """Update the evidence by a value. Raises ValueError unless it is between -2 and 2."""
        if not -2 < value < 2:
            raise ValueError(f"{value} is not between -2 and 2, which bets of a half need")
        average = self._sum / self._count
        variance = max(self._squares / self._count - average**2, 1e-9)
        bet = min(max(average / (variance + average**2), 0.0), 0.5)
        self._log += log(1 + bet * value)
        self._highest = max(self._highest, self._log)
        self._count, self._sum = self._count + 1, self._sum + value
        self._squares += value**2
