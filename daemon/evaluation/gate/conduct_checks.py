"""Checks of conduct: policy violations, malformed calls, tokens."""

from math import exp, sqrt
from statistics import NormalDist
from typing import Final

from daemon.evaluation.binomial import conditional_binomial
from daemon.evaluation.gate.levels import level_of, rate
from daemon.evaluation.gate.measurements import Conduct, Evaluation, TokenUse
from daemon.evaluation.gate.target_tests import sign_flip
from events.gate import AFTER_ERROR, Check, GateSettings

_NORMAL: Final = NormalDist()


def check_conduct(evaluation: Evaluation, settings: GateSettings) -> list[Check]:
    """Return the checks of violations, of the format and of tokens, in this order."""
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
    """Return a check of all rollouts. If both policies' rollouts with a refused call count apart,
    return one without them, one of them, and one of all with the larger limit: refusals move
    rollouts between the parts."""
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
    """FAIL if the candidate has more violations than chance explains, by rollouts and by tasks."""
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
    """FAIL if the share of malformed calls grew by more than the margin, and beyond chance."""
    value, limit = (
        _share(after.malformed, after.tool_calls),
        _share(before.malformed, before.tool_calls) + margin,
    )
    calls = after.tool_calls + before.tool_calls
    # If neither side made a call, there is nothing to compare.
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
    """FAIL if the mean grew by more than the limit, with a lower bound above 0 (delta method on
    the log ratio)."""
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
    """Return the largest count that is not significantly higher than the incumbent's `before`."""
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


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
