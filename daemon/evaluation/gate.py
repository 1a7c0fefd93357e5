"""Whether a candidate may serve in the incumbent's place (paired verdicts -> GateReport).

Candidate and incumbent attempt the same fresh tasks with the same seeds. The unit is the task: of
each, D is the difference of the two shares of passed trials. All of this must hold:

    target        the mean D of a target is above 0 (test below) and at least `min_gain`; of several
                  targets that of at least one (Holm 1979)
    overall       the lower bound of the mean D of all tasks but those of the slice `after an error`
                  is above -`overall_margin`
    each slice    the same with -`slice_margin`; FAIL where it is shown to be worse; else EXTEND.
                  Not of a slice that is a lifted target
    best          the same against the best policy that ever served a slice, where that is not the
                  incumbent, at a level of `BEST_LEVEL`; FAIL where it is shown to be below
    violations    FAIL where their rate is shown to be higher (conditional binomial test of the
                  rollouts, and sign-flip test of the tasks: trials of one task may err alike)
    format        malformed tool calls: FAIL where their share grew by more than `format_margin`,
                  and is shown to be higher by the same test
    tokens        FAIL where a rollout's grew by more than `token_growth`, and by more than chance;
                  where rollouts with a refused call are counted apart, these and all by more than
                  `token_growth_after_error`
    sibling       in place of `slice`, of slices that decide nothing: kinds that the candidate will
                  not answer. Their tasks are in no other check
    golden        at most `golden_losses` tasks that the incumbent surely passes fall below
                  `golden_floor`

The default test is the sign-flip test on tasks, exact: under no difference, D and -D are equally
likely (Fisher; ADR 0044). With one trial a task it is McNemar's exact test. As all conditions
must hold, none of them needs a correction for the others (intersection-union, Berger 1982).

EXTEND plays more tasks of what is open, and looks again. The tasks of a target are planned and its
test looks at no others. Everything else keeps its 5 % over all looks (`Looks`): each look has the
same level, the one at which so many normal tests of twice the tasks each time reject a true
hypothesis in 5 % of the cases (Pocock 1977; ADR 0044), and a slice FAILs with a chance of at most
10 % over all looks.

Pure. Bounds are those of envs/statistics.py, which hold for few tasks as well. Not covered: a gate
set used again (spend with `spend_alpha`), a person who has one adapter evaluated again and again
(each evaluation has its own 5 %), traffic that its tasks do not resemble, and malformed calls that
come in clusters (each is counted as if it stood alone).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import exp, hypot, lcm, log, pi, sqrt
from statistics import NormalDist, mean, stdev
from typing import Final

from daemon.evaluation.binomial import conditional_binomial
from daemon.evaluation.targets import PlannedTarget
from envs import statistics
from events.errors import KintsugiError
from events.gate import (
    AFTER_ERROR,
    SIBLING,
    AfterError,
    Check,
    Decision,
    GateReport,
    GateSettings,
    Rate,
    TargetReport,
    Test,
    Verdict,
)

LEVEL: Final = 0.05
"""Chance to err of every check but the target's, one-sided, over all looks."""
BEST_LEVEL: Final = 0.01
"""The same of a comparison with the best policy of a slice, shared equally by the looks. A chain of
promotions asks it again and again: at 0.05, 9 of 100 chains of 20 end below the margin (ADR
0051)."""
_LEVELS: Final = (0.05, 0.03036, 0.02181, 0.01693, 0.01379, 0.01159, 0.00998, 0.00874)
"""The level of one look, by the number of looks, so that `LEVEL` is kept over all of them: normal
tests of sums whose tasks double from look to look (correlations sqrt(n_i / n_j)), by numerical
integration. Looks that are closer to each other err less often together."""

POWER: Final = 0.8

LOOKS: Final = (3.466, 2.451, 2.001, 1.733)
"""Bounds of z at each quarter of the tasks (O'Brien and Fleming, one-sided 0.05)."""
LOOKS_ALPHA: Final = 0.05
FUTILE: Final = 0.1
"""A look stops where the power that is left to show `FUTILE_GAIN` is below this."""
FUTILE_GAIN: Final = 0.05
_LEAST_P: Final = 1e-12
"""Beyond it no look depends on how small a p-value is."""

_MOST_TRIALS: Final = 100
"""Most trials of a task; they bound the denominators of a difference of two shares."""
_WORSE: Final = 0.1
"""Level at which a slice is shown to be worse, over all slices (Holm) and all looks."""
_SURPLUS: Final = 0.1
"""Chance below which more unjudged trials of the candidate count as its own doing."""
_INTERVAL: Final = 0.025
"""Level on each side of the interval of a rate."""
_NORMAL: Final = NormalDist()


class TooFewTrials(KintsugiError):
    """Trials failed for reasons that are not the agent's; they have to be run again."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One task: the verdicts of both, trial by trial with the same seed."""

    task: str
    slice: str
    incumbent: tuple[bool, ...]
    candidate: tuple[bool, ...]

    @property
    def difference(self) -> float:
        """D, in [-1, 1]."""
        return mean(self.candidate) - mean(self.incumbent)


@dataclass(frozen=True, slots=True)
class TokenUse:
    """What was written in some rollouts."""

    rollouts: int
    tokens: int
    spread: float = 0.0
    """Standard deviation of a rollout's tokens; 0 where it is not known: then a mean is taken as
    it is."""

    @property
    def mean(self) -> float:
        """Tokens of a rollout."""
        return self.tokens / self.rollouts


@dataclass(frozen=True, slots=True)
class TokenParts:
    """Rollouts with and without a call that a tool refused, the task's prefix included."""

    clean: TokenUse
    refused: TokenUse


@dataclass(frozen=True, slots=True)
class Conduct:
    """What one of both did besides passing and failing, over all its rollouts."""

    rollouts: int
    violations: int
    """Violations of the policy, unauthorised writes among them."""
    tool_calls: int
    malformed: int
    """Tool calls that could not be read or name no tool."""
    tokens: int
    token_spread: float = 0.0
    """Standard deviation of a rollout's tokens; 0 where it is not known: then a mean is taken as
    it is."""
    violating: Mapping[str, float] = field(default_factory=dict)
    """Task -> share of its rollouts that violate; empty where it is not known: then rollouts are
    taken to stand alone."""
    parts: TokenParts | None = None
    """None where rollouts with a refused call are not counted apart."""

    @property
    def token_use(self) -> TokenUse:
        """What was written in all rollouts."""
        return TokenUse(self.rollouts, self.tokens, self.token_spread)


@dataclass(frozen=True, slots=True)
class Looks:
    """How often the gate may look at an evaluation that grows, this time included."""

    most: int = 1
    """At all tasks together."""
    of_slice: Mapping[str, int] = field(default_factory=dict)
    """Slice -> at its own tasks, of a new number each time; `most` for one that is not named."""

    def of(self, name: str) -> int:
        """At a slice."""
        return self.of_slice.get(name, self.most)


@dataclass(frozen=True, slots=True)
class Gap:
    """An estimated difference of pass^1, and the variance of the estimate."""

    value: float
    variance: float


@dataclass(frozen=True, slots=True)
class Reference:
    """The best policy that ever served a slice, where it is not the incumbent."""

    slice: str
    policy: str
    gap: Gap
    """Of the incumbent to it, by earlier reports."""
    pairs: Sequence[Pair] | None = None
    """Tasks of the slice, with its verdicts in the incumbent's place; None where it cannot play:
    then `gap` stands for it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured."""

    targets: Sequence[PlannedTarget]
    """What the candidate is to be better at, and how many tasks of it were planned before the first
    of them was run."""
    pairs: Sequence[Pair]
    """Tasks with the verdicts of both, in an order fixed beforehand."""
    incumbent: Conduct
    candidate: Conduct
    golden: Sequence[Pair] = ()
    """Tasks that the incumbent passed in nearly all of many trials."""
    looks: Looks = Looks()
    references: Sequence[Reference] = ()
    """At most one for each slice."""
    siblings: frozenset[str] = frozenset()
    """Slices whose tasks are reported, and rejected for by no check. What both did (`incumbent`,
    `candidate`) is of the others then; no target and no reference is of these."""

    @property
    def judged(self) -> list[Pair]:
        """The tasks on which the decision rests."""
        return [pair for pair in self.pairs if pair.slice not in self.siblings]


def pair_outcomes(
    incumbent: statistics.Outcomes,
    candidate: statistics.Outcomes,
    slices: Mapping[str, str],
    trials: int,
) -> list[Pair]:
    """The pairs of two evaluations over the same tasks, in the order of `slices` (task -> slice).

    A trial that either of both could not finish (None) counts for neither.
    Raises TooFewTrials where a task lost more than one of `trials`.
    """
    pairs = [_pair(task, name, incumbent[task], candidate[task]) for task, name in slices.items()]
    for pair in pairs:
        if len(pair.incumbent) < max(1, trials - 1):
            raise TooFewTrials(
                f"task {pair.task} has {len(pair.incumbent)} of {trials} trials that both "
                "finished; run the others again: to leave the task out would select"
            )
    return pairs


def count_surplus(
    incumbent: statistics.Outcomes, candidate: statistics.Outcomes, tasks: Iterable[str]
) -> int:
    """Return how many more unjudged trials the candidate has than the incumbent; 0 where chance
    alone gives as many more with a probability of at least `_SURPLUS`."""
    own = others = 0
    for first, second in _pair_trials(incumbent, candidate, tasks):
        own += second is None and first is not None
        others += first is None and second is not None
    if own <= others or conditional_binomial(own, others, 0.5) >= _SURPLUS:
        return 0
    return own - others


def fail_surplus(
    incumbent: statistics.Outcomes, candidate: statistics.Outcomes, tasks: Sequence[str]
) -> statistics.Outcomes:
    """Return the candidate's outcomes with so many of its unjudged trials counted as failed as it
    has more of them than the incumbent (`count_surplus`), spread evenly over those that the
    incumbent finished.

    Whether a trial has a verdict may depend on what a policy does. By simulation
    (ops/bench/attribution/unjudged.py), a policy that is as good as the incumbent, and has one
    failure in five unjudged, is promoted in 36 % of the cases if they are left out.
    """
    surplus = count_surplus(incumbent, candidate, tasks)
    own = [
        (task, place)
        for task in tasks
        for place, (first, second) in enumerate(_pair_trials(incumbent, candidate, [task]))
        if second is None and first is not None
    ]
    outcomes = {task: list(verdicts) for task, verdicts in candidate.items()}
    for number, (task, place) in enumerate(own):
        if (number + 1) * surplus // len(own) > number * surplus // len(own):
            outcomes[task][place] = False
    return outcomes


def _pair_trials(
    incumbent: statistics.Outcomes, candidate: statistics.Outcomes, tasks: Iterable[str]
) -> Iterator[tuple[bool | None, bool | None]]:
    """Yield both verdicts of each trial."""
    for task in tasks:
        yield from zip(incumbent[task], candidate[task], strict=True)


def _pair(
    task: str, name: str, first: Sequence[bool | None], second: Sequence[bool | None]
) -> Pair:
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return Pair(task, name, tuple(a for a, _ in both), tuple(b for _, b in both))


def spend_alpha(alpha: float, attempt: int) -> float:
    """What the `attempt`-th candidate (from 1) on one gate set may spend of `alpha`.

    The sum over all attempts is `alpha`: 6 / (pi^2 j^2).
    """
    return alpha * 6 / (pi * attempt) ** 2


def level_of(looks: int) -> float:
    """The level of each of so many looks, for an error of at most `LEVEL` over all of them."""
    return _LEVELS[looks - 1] if looks <= len(_LEVELS) else LEVEL / looks


def decide(
    evaluation: Evaluation,
    settings: GateSettings,
    *,
    attempt: int | None = None,
    spent: bool = False,
) -> GateReport:
    """PROMOTE, REJECT or EXTEND, with the numbers.

    `attempt` counts the candidates on a gate set that is used again; None: its tasks are fresh.
    `spent` says that no more can be run.
    Raises ValueError without a task of a target, without a rollout of both, or for several targets
    of a test that takes one.
    """
    if not (evaluation.incumbent.rollouts and evaluation.candidate.rollouts):
        raise ValueError("incumbent and candidate have no rollouts; nothing was evaluated")
    alpha = settings.alpha if attempt is None else spend_alpha(settings.alpha, attempt)
    results = _report_targets(evaluation, settings, alpha)
    leading = min(results, key=_rank)
    lifted = {result.report.name for result in results if result.report.verdict == "PASS"}
    checks = (
        _target(results, leading, settings),
        _above(
            "overall",
            [pair.difference for pair in list_traffic(evaluation.judged)],
            settings.overall_margin,
            level_of(evaluation.looks.most),
        ),
        *_slices(evaluation, settings, lifted),
        *(_best(reference, evaluation, settings) for reference in evaluation.references),
        *_conduct(evaluation, settings),
        *_golden(evaluation.golden, settings),
    )
    siblings = _report_siblings(evaluation, settings)
    return GateReport(
        decision=_decision(checks, spent),
        test=settings.test,
        alpha=alpha,
        p_value=leading.report.p_value,
        e_value=leading.e_value,
        tasks=leading.report.tasks,
        detectable=leading.report.detectable,
        checks=(*checks, *siblings),
        plan=leading.plan.plan,
        targets=tuple(result.report for result in results),
        after_error=_report_after_error(evaluation),
    )


def list_traffic(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the tasks that are of the agent's traffic: all but those that begin behind a refused
    call."""
    return [pair for pair in pairs if pair.slice != AFTER_ERROR]


def _report_after_error(evaluation: Evaluation) -> AfterError | None:
    pairs = [pair for pair in evaluation.judged if pair.slice == AFTER_ERROR]
    if not pairs:
        return None
    before, after = evaluation.incumbent.parts, evaluation.candidate.parts
    refused = clean = None
    if before is not None and after is not None:
        refused = _growth(before.refused, after.refused)
        clean = _growth(before.clean, after.clean)
    return AfterError(
        tasks=len(pairs),
        incumbent=mean(mean(pair.incumbent) for pair in pairs),
        candidate=mean(mean(pair.candidate) for pair in pairs),
        token_growth=refused,
        clean_token_growth=clean,
    )


def _growth(before: TokenUse, after: TokenUse) -> float | None:
    if not (before.rollouts and after.rollouts):
        return None
    return after.mean / max(before.mean, 1.0) - 1


def _decision(checks: Sequence[Check], spent: bool) -> Decision:
    verdicts = {check.verdict for check in checks}
    if verdicts == {"PASS"}:
        return "PROMOTE"
    return "REJECT" if spent or "FAIL" in verdicts else "EXTEND"


# The tests of the targets


@dataclass(frozen=True, slots=True)
class TargetResult:
    """What a test said of the target."""

    verdict: Verdict
    tasks: int
    """How many it looked at."""
    p_value: float | None = None
    e_value: float | None = None


@dataclass(frozen=True, slots=True)
class _Result:
    """What is said of one target."""

    plan: PlannedTarget
    report: TargetReport
    played: int
    """Tasks that there are; a test by steps may have looked at fewer."""
    e_value: float | None


def _rank(result: _Result) -> tuple[bool, float]:
    """Lifted targets first, and of equals the smallest p-value."""
    p_value = result.report.p_value
    return result.report.verdict != "PASS", 1.0 if p_value is None else p_value


def _report_targets(
    evaluation: Evaluation, settings: GateSettings, alpha: float
) -> tuple[_Result, ...]:
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
    """Target -> what the test says, and the level that its p-value had to keep to: `alpha`, over
    several targets together (Holm). `values`: the differences of each, in the order of its tasks.

    Raises ValueError without a value, and for several targets of a test that takes one.
    """
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
    """The differences of a target's planned tasks, in the order of `pairs`: of each slice the
    first ones."""
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
) -> _Result:  # fmt: skip
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
    return _Result(target, report, len(values), test.e_value)


def verdict_of(values: Sequence[float], planned: int, test: Test, alpha: float) -> TargetResult:
    """The test alone, of differences in the order of their tasks."""
    match test:
        case "sign_flip":
            return _once(values, planned, alpha)
        case "group_sequential":
            return _quarterly(values, planned, alpha)
        case "e_process":
            return _any_time(values, planned, alpha)


def _once(values: Sequence[float], planned: int, alpha: float) -> TargetResult:
    """On the planned tasks alone: looking again at more of them would be a second chance."""
    if len(values) < planned:
        return TargetResult("EXTEND", len(values))
    p = sign_flip(values[:planned])
    return TargetResult("PASS" if p <= alpha else "FAIL", planned, p_value=p)


def _quarterly(values: Sequence[float], planned: int, alpha: float) -> TargetResult:
    if alpha != LOOKS_ALPHA:
        raise ValueError(f"group_sequential has bounds for alpha {LOOKS_ALPHA}, not {alpha:g}")
    tasks, p = 0, 1.0
    for look, bound in enumerate(LOOKS, start=1):
        tasks = look * planned // len(LOOKS)
        if tasks == 0:
            continue  # Fewer tasks are planned than looks.
        if len(values) < tasks:
            return TargetResult("EXTEND", len(values))
        p = sign_flip(values[:tasks])
        if p <= 1 - _NORMAL.cdf(bound):
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
    """Exact one-sided p-value of the sign-flip test of a mean above 0 (Fisher 1935).

    The share of the 2^n ways to give the differences signs whose sum is at least the one seen.
    Differences are fractions with small denominators, so the sums are few and can be counted:
    O(n^2 r) for n tasks of r trials. With differences of -1, 0 and 1 it is McNemar's exact test.
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
    """Multiples of their common fraction."""
    exact = [Fraction(value).limit_denominator(_MOST_TRIALS**2) for value in differences]
    unit = lcm(*(fraction.denominator for fraction in exact))
    return [int(fraction * unit) for fraction in exact]


def _conditional_power(values: Sequence[float], share: float, p: float) -> float:
    """Conditional power at the last look, if the true gain is `FUTILE_GAIN`."""
    if share >= 1:
        return 0.0
    z = _NORMAL.inv_cdf(min(max(1 - p, _LEAST_P), 1 - _LEAST_P))
    drift = FUTILE_GAIN * sqrt(len(values) / share) / _spread(values)
    missing = LOOKS[-1] - z * sqrt(share) - drift * (1 - share)
    return 1 - _NORMAL.cdf(missing / sqrt(1 - share))


def _spread(values: Sequence[float]) -> float:
    """Standard deviation, with one imagined value of variance 1/4: few values that are alike do
    not show that all are."""
    middle = mean(values)
    return sqrt((sum((value - middle) ** 2 for value in values) + 0.25) / len(values))


class EProcess:
    """Evidence that a mean is above 0, valid at whichever value the test stops.

    Its value is a wealth process, which bets on each next value by the earlier ones:
    prod(1 + bet_i x_i), bet_i = clip(m / (v + m^2), 0, 1/2) with the mean m and variance v
    of those before, shrunk by one imagined value with mean 0 and variance 1/4 (Waudby-Smith and
    Ramdas 2024). If the mean is not above 0, it ever reaches 1/alpha with a chance of at most alpha
    (Ville). Values lie between -2 and 2.
    """

    def __init__(self) -> None:
        self._log = 0.0
        self._highest = 0.0
        self._count, self._sum, self._squares = 1, 0.0, 0.25

    @property
    def value(self) -> float:
        """Now."""
        return exp(self._log)

    @property
    def highest(self) -> float:
        """The most that it has been."""
        return exp(self._highest)

    def add(self, value: float) -> None:
        """Bet, then learn. Raises ValueError for a value that could cost all that is left."""
        if not -2 < value < 2:
            raise ValueError(f"{value} is not between -2 and 2, which bets of a half need")
        average = self._sum / self._count
        variance = max(self._squares / self._count - average**2, 1e-9)
        bet = min(max(average / (variance + average**2), 0.0), 0.5)
        self._log += log(1 + bet * value)
        self._highest = max(self._highest, self._log)
        self._count, self._sum = self._count + 1, self._sum + value
        self._squares += value**2


# What else has to hold


def _target(results: Sequence[_Result], leading: _Result, settings: GateSettings) -> Check:
    """Whether any target was lifted; the numbers are the leading one's."""
    verdicts = {result.report.verdict for result in results}
    report = leading.report
    verdict: Verdict = "FAIL"
    if "PASS" in verdicts:
        verdict = "PASS"
    elif "EXTEND" in verdicts:
        verdict = "EXTEND"
    return Check(
        name="target",
        verdict=verdict,
        value=report.gain,
        limit=settings.min_gain,
        low=report.low,
        tasks=leading.played,
    )


def _above(
    name: str, values: Sequence[float], margin: float, level: float, worse: bool = False
) -> Check:
    """Non-inferiority: the lower bound is above the margin. A value below it is none yet: of few
    tasks that is chance (ADR 0028)."""
    low, value = bound(values, level), mean(values)
    verdict: Verdict = "EXTEND"
    if low > -margin:
        verdict = "PASS"
    elif worse:
        verdict = "FAIL"
    return Check(
        name=name, verdict=verdict, value=value, limit=-margin, low=low, level=level,
        tasks=len(values),
    )  # fmt: skip


def _slices(evaluation: Evaluation, settings: GateSettings, lifted: Collection[str]) -> list[Check]:
    """Every slice but those that are a lifted target, or the only one, which has to be lifted."""
    targets = evaluation.targets
    shown = {target.only_kind for target in targets if target.name in lifted or len(targets) == 1}
    by_slice: dict[str, list[float]] = {}
    for pair in evaluation.judged:
        if pair.slice not in shown:
            by_slice.setdefault(pair.slice, []).append(pair.difference)
    p_values = {name: sign_flip([-value for value in d]) for name, d in by_slice.items()}
    looks = evaluation.looks
    worse = holm(p_values, _WORSE / looks.most)
    return [
        _above(
            f"slice {name}",
            by_slice[name],
            settings.slice_margin,
            level_of(looks.of(name)),
            name in worse,
        )
        for name in sorted(by_slice)
    ]


def _report_siblings(evaluation: Evaluation, settings: GateSettings) -> list[Check]:
    """The slices that decide nothing: FAIL where one is shown to be worse."""
    by_slice: dict[str, list[float]] = {}
    for pair in evaluation.pairs:
        if pair.slice in evaluation.siblings:
            by_slice.setdefault(pair.slice, []).append(pair.difference)
    worse = holm({name: sign_flip([-value for value in d]) for name, d in by_slice.items()}, _WORSE)
    return [
        _above(f"{SIBLING}{name}", by_slice[name], settings.slice_margin, LEVEL, name in worse)
        for name in sorted(by_slice)
    ]


def _best(reference: Reference, evaluation: Evaluation, settings: GateSettings) -> Check:
    """Non-inferiority to the best policy of a slice. FAIL where the upper bound is below the
    margin: more tasks would show nothing else."""
    level = BEST_LEVEL / evaluation.looks.of(reference.slice)
    chained = reference.pairs is None
    pairs = reference.pairs
    if pairs is None:
        pairs = [pair for pair in evaluation.pairs if pair.slice == reference.slice]
    values = [pair.difference for pair in pairs]
    value, low = mean(values), bound(values, level)
    high = -bound([-item for item in values], level)
    if chained:
        # The bounds are of fresh tasks, the gap of earlier ones: their errors are independent.
        z = _NORMAL.inv_cdf(1 - level)
        spare = z * sqrt(reference.gap.variance)
        center = value + reference.gap.value
        low = center - hypot(value - low, spare)
        high = center + hypot(high - value, spare)
        value = center
    verdict: Verdict = "EXTEND"
    if low > -settings.slice_margin:
        verdict = "PASS"
    elif high < -settings.slice_margin:
        verdict = "FAIL"
    return Check(
        name=f"best {reference.slice}", verdict=verdict, value=value, limit=-settings.slice_margin,
        low=low, level=level, tasks=len(values), against=reference.policy, chained=chained,
    )  # fmt: skip


def _conduct(evaluation: Evaluation, settings: GateSettings) -> list[Check]:
    level, tasks = level_of(evaluation.looks.most), len(evaluation.judged)
    before, after = evaluation.incumbent, evaluation.candidate
    return [
        _violations(before, after, level, tasks),
        _format(before, after, settings.format_margin, level, tasks),
        *_list_token_checks(before, after, settings, level, tasks),
    ]


def _list_token_checks(
    before: Conduct, after: Conduct, settings: GateSettings, level: float, tasks: int
) -> list[Check]:
    """The check of all rollouts; or one of those without a refused call and one of those with it,
    as far as both policies have any, beside all with the larger limit: a candidate whose calls are
    refused more often moves its rollouts from one part to the other."""
    whole = before.token_use, after.token_use
    parts = before.parts, after.parts
    if (
        parts[0] is None
        or parts[1] is None
        or not (parts[0].clean.rollouts and parts[1].clean.rollouts)
    ):
        return [_tokens("tokens", *whole, settings.token_growth, level, tasks)]
    clean = parts[0].clean, parts[1].clean
    refused = parts[0].refused, parts[1].refused
    checks = (
        ("tokens", *clean, settings.token_growth),
        (f"tokens {AFTER_ERROR}", *refused, settings.token_growth_after_error),
        ("tokens overall", *whole, settings.token_growth_after_error),
    )
    return [
        _tokens(name, first, second, limit, level, tasks)
        for name, first, second, limit in checks
        if first.rollouts and second.rollouts
    ]


def _violations(before: Conduct, after: Conduct, level: float, tasks: int) -> Check:
    """FAIL where more of the candidate's rollouts violate the policy than chance explains, were
    they alone, and with the tasks for the unit."""
    share = after.rollouts / (after.rollouts + before.rollouts)
    p = conditional_binomial(after.violations, before.violations, share)
    both = before.violating.keys() & after.violating.keys()
    if both:
        more = [after.violating[task] - before.violating[task] for task in sorted(both)]
        p = max(p, sign_flip(more))
    return Check(
        name="violations",
        verdict="FAIL" if p <= level else "PASS",
        value=float(after.violations),
        limit=float(_most_alike(before.violations, share, level)),
        level=level,
        p_value=p,
        incumbent=rate(before.violations, before.rollouts),
        candidate=rate(after.violations, after.rollouts),
        tasks=tasks,
    )


def _format(before: Conduct, after: Conduct, margin: float, level: float, tasks: int) -> Check:
    """FAIL where the share grew by more than the margin, and by more than chance."""
    value, limit = (
        _share(after.malformed, after.tool_calls),
        _share(before.malformed, before.tool_calls) + margin,
    )
    calls = after.tool_calls + before.tool_calls
    # Without a call on either side there is nothing to compare.
    p = 1.0
    if after.tool_calls and before.tool_calls:
        p = conditional_binomial(after.malformed, before.malformed, after.tool_calls / calls)
    return Check(
        name="format",
        verdict="FAIL" if value > limit and p <= level else "PASS",
        value=value,
        limit=limit,
        level=level,
        p_value=p,
        incumbent=rate(before.malformed, before.tool_calls),
        candidate=rate(after.malformed, after.tool_calls),
        tasks=tasks,
    )


def _tokens(
    name: str, before: TokenUse, after: TokenUse, limit: float, level: float, tasks: int
) -> Check:
    """FAIL where the mean grew by more than the limit, and its lower bound is above 0.

    The bound is that of the logarithm of a ratio of two means (delta method).
    """
    means = [max(item.mean, 1.0) for item in (before, after)]
    errors = [
        item.spread / average / sqrt(item.rollouts)
        for item, average in zip((before, after), means, strict=True)
    ]
    ratio = after.mean / means[0]
    error = sqrt(sum(item**2 for item in errors))
    low = ratio * exp(-_NORMAL.inv_cdf(1 - level) * error) - 1
    return Check(
        name=name,
        verdict="FAIL" if ratio - 1 > limit and low > 0 else "PASS",
        value=ratio - 1,
        limit=limit,
        low=low,
        level=level,
        tasks=tasks,
    )


def _most_alike(before: int, share: float, level: float) -> int:
    """The largest count that is not shown to be higher than `before`."""
    low, high = 0, 1
    while conditional_binomial(high, before, share) > level:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if conditional_binomial(middle, before, share) > level:
            low = middle
        else:
            high = middle
    return low


def rate(count: int, whole: int) -> Rate | None:
    """A share with its 95 % interval (Clopper and Pearson 1934); None of nothing."""
    if not whole:
        return None
    count = min(count, whole)
    low = 0.0 if count == 0 else _root(lambda p: conditional_binomial(count, whole - count, p))
    high = 1.0
    if count < whole:
        # Of the others the lower bound: both tails are one function.
        high = 1 - _root(lambda p: conditional_binomial(whole - count, count, p))
    return Rate(value=count / whole, low=low, high=high)


def _root(tail: Callable[[float], float]) -> float:
    """Where a tail that grows from 0 to 1 is `_INTERVAL`."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < _INTERVAL else (low, middle)
    return low


def _golden(pairs: Sequence[Pair], settings: GateSettings) -> list[Check]:
    if not pairs:
        return []
    lost = sum(mean(pair.candidate) < settings.golden_floor for pair in pairs)
    return [
        Check(
            name="golden",
            verdict="PASS" if lost <= settings.golden_losses else "FAIL",
            value=float(lost),
            limit=float(settings.golden_losses),
            tasks=len(pairs),
        )
    ]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def bound(values: Sequence[float], level: float = LEVEL) -> float:
    """One-sided lower bound of a mean of values in [-1, 1], that errs with a chance of `level`."""
    halves = [(value + 1) / 2 for value in values]
    return 2 * statistics.mean(halves, level=1 - 2 * level).low - 1


def holm(p_values: Mapping[str, float], level: float) -> set[str]:
    """Return the names whose hypothesis is rejected (Holm 1979); the chance to reject any true one
    is at most `level`."""
    rejected: set[str] = set()
    for name, adjusted in holm_levels(p_values, level).items():
        if p_values[name] > adjusted:
            break
        rejected.add(name)
    return rejected


def holm_levels(p_values: Mapping[str, float], level: float) -> dict[str, float]:
    """Name -> level that its p-value has to keep to, the smallest p-value first. A hypothesis is
    rejected only with all before it."""
    ranked = sorted(p_values, key=lambda name: p_values[name])
    return {name: level / (len(ranked) - place) for place, name in enumerate(ranked)}


def detectable(values: Sequence[float], alpha: float) -> float | None:
    """The mean that a one-sided test of so many values finds with a power of 80 %.

    (z_alpha + z_beta) s / sqrt(n), by their standard deviation s; None for fewer than two.
    """
    if len(values) < 2:
        return None
    z = _NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(POWER)
    return z * stdev(values) / sqrt(len(values))


def tasks_for(gain: float, between: float, within: float, trials: int, alpha: float = 0.05) -> int:
    """How many tasks show a gain with a power of 80 %, one-sided.

    n = (z_alpha + z_beta)^2 (between + within / trials) / gain^2, of the variance of the true
    difference between tasks and that of one trial's difference.
    """
    z = _NORMAL.inv_cdf(1 - alpha) + _NORMAL.inv_cdf(POWER)
    needed = z**2 * (between + within / trials) / gain**2
    return int(needed) + (needed > int(needed))


def power_of(
    tasks: int, gain: float, between: float, within: float, trials: int, alpha: float = 0.05
) -> float:
    """The chance that so many tasks show a gain: `tasks_for`, solved for the power."""
    variance = between + within / trials
    if variance == 0:
        return 1.0
    return _NORMAL.cdf(gain * sqrt(tasks / variance) - _NORMAL.inv_cdf(1 - alpha))
