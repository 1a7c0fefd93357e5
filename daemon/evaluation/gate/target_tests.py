"""The tests of the targets: sign-flip, group-sequential, and an e-process.

The default is the exact sign-flip test on tasks: under no difference, D and -D are equally likely
(Fisher; ADR 0044). With one trial a task it is McNemar's exact test.
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
"""Bounds of z at each quarter of the tasks (O'Brien and Fleming, one-sided 0.05)."""
LOOKS_ALPHA: Final = 0.05
FUTILE: Final = 0.1
"""Least power left to show `FUTILE_GAIN`; below it a look stops."""
FUTILE_GAIN: Final = 0.05
_LEAST_P: Final = 1e-12
"""No look depends on smaller p-values."""
_MOST_TRIALS: Final = 100
"""Most trials of a task; they bound the denominators of a difference of two shares."""
_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class TargetResult:
    """Result of a target's test."""

    verdict: Verdict
    tasks: int
    """Tasks that it looked at."""
    p_value: float | None = None
    e_value: float | None = None


@dataclass(frozen=True, slots=True)
class TargetEvidence:
    """The gate's evidence on a target."""

    plan: PlannedTarget
    report: TargetReport
    played: int
    """Tasks played; a test by steps may look at fewer."""
    e_value: float | None


def rank_evidence(result: TargetEvidence) -> tuple[bool, float]:
    """Rank lifted targets first, then by p-value."""
    p_value = result.report.p_value
    return result.report.verdict != "PASS", 1.0 if p_value is None else p_value


def report_targets(
    evaluation: Evaluation, settings: GateSettings, alpha: float
) -> tuple[TargetEvidence, ...]:
    """Test each target, in order. Raises ValueError as `judge_targets` does."""
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
    """Return target -> its result and its level: `alpha`, shared by several targets (Holm).
    `values` holds each target's differences in task order. Raises ValueError without a value, and
    for several targets of a test that takes one."""
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
    # A target that is not played out keeps its place, and shows nothing yet.
    p_values = {
        name: 1.0 if result.p_value is None else result.p_value for name, result in results.items()
    }
    levels, shown = holm_levels(p_values, alpha), holm(p_values, alpha)
    for name, result in results.items():
        if result.verdict != "EXTEND":
            results[name] = replace(result, verdict="PASS" if name in shown else "FAIL")
    return {name: (result, levels[name]) for name, result in results.items()}


def list_differences(target: PlannedTarget, pairs: Sequence[Pair]) -> list[float]:
    """Return the differences of a target's planned tasks: each slice's first ones in `pairs`."""
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
    """Return a test's result on differences in task order."""
    match test:
        case "sign_flip":
            return _once(values, planned, alpha)
        case "group_sequential":
            return _quarterly(values, planned, alpha)
        case "e_process":
            return _any_time(values, planned, alpha)


def _once(values: Sequence[float], planned: int, alpha: float) -> TargetResult:
    """Test the planned tasks alone: a look at more would be a second chance."""
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
    # A sum of signed differences is twice the positive ones' less all of them.
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
    """Return the standard deviation, with one imagined value of variance 1/4: few equal values do
    not show that all are."""
    middle = mean(values)
    return sqrt((sum((value - middle) ** 2 for value in values) + 0.25) / len(values))


class EProcess:
    """Evidence that a mean of values between -2 and 2 is above 0, valid at any stopping time.

    A wealth process that bets on each value by the earlier ones: prod(1 + bet_i x_i) with bet_i =
    clip(m / (v + m^2), 0, 1/2). Mean m and variance v are those of the earlier values, shrunk by
    one imagined value with mean 0 and variance 1/4 (Waudby-Smith and Ramdas 2024). If the mean is
    not above 0, it ever reaches 1/alpha with a chance of at most alpha (Ville).
    """

    def __init__(self) -> None:
        self._log = 0.0
        self._highest = 0.0
        self._count, self._sum, self._squares = 1, 0.0, 0.25

    @property
    def value(self) -> float:
        """Return the present evidence."""
        return exp(self._log)

    @property
    def highest(self) -> float:
        """Return the largest evidence so far."""
        return exp(self._highest)

    def add(self, value: float) -> None:
        """Bet on a value, then learn it. Raises ValueError if it could cost all the wealth."""
        if not -2 < value < 2:
            raise ValueError(f"{value} is not between -2 and 2, which bets of a half need")
        average = self._sum / self._count
        variance = max(self._squares / self._count - average**2, 1e-9)
        bet = min(max(average / (variance + average**2), 0.0), 0.5)
        self._log += log(1 + bet * value)
        self._highest = max(self._highest, self._log)
        self._count, self._sum = self._count + 1, self._sum + value
        self._squares += value**2
