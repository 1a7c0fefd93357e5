"""Checks of verdicts: target better, no slice worse, not below best policies, golden tasks kept."""

from collections.abc import Collection, Sequence
from math import hypot, sqrt
from statistics import NormalDist, mean
from typing import Final

from daemon.evaluation.gate.levels import BEST_LEVEL, LEVEL, bound, holm, level_of
from daemon.evaluation.gate.measurements import Evaluation, Reference
from daemon.evaluation.gate.pairs import Pair, list_traffic
from daemon.evaluation.gate.target_tests import TargetEvidence, sign_flip
from events.gate import SIBLING, Check, GateSettings, Verdict

_WORSE: Final = 0.1
"""Error level of the test that a slice is worse, over all slices (Holm) and looks."""
_NORMAL: Final = NormalDist()


def check_target(
    results: Sequence[TargetEvidence], leading: TargetEvidence, settings: GateSettings
) -> Check:
    """Return the check that a target improved. It shows the numbers of the target `leading`."""
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


def check_overall(evaluation: Evaluation, settings: GateSettings) -> Check:
    """Return the check that the candidate is not inferior over all traffic."""
    return _above(
        "overall",
        [pair.difference for pair in list_traffic(evaluation.judged)],
        settings.overall_margin,
        level_of(evaluation.looks.most),
    )


def _above(
    name: str, values: Sequence[float], margin: float, level: float, worse: bool = False
) -> Check:
    """Check non-inferiority: the lower bound is above the margin. A value below the margin is no
    FAIL yet, because few tasks show that by chance (ADR 0028)."""
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


def check_slices(
    evaluation: Evaluation, settings: GateSettings, lifted: Collection[str]
) -> list[Check]:
    """Return a check of each slice that is no target that improved, and not the only target."""
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


def report_siblings(evaluation: Evaluation, settings: GateSettings) -> list[Check]:
    """Return a check for each slice that decides nothing: FAIL if it is shown to be worse."""
    by_slice: dict[str, list[float]] = {}
    for pair in evaluation.pairs:
        if pair.slice in evaluation.siblings:
            by_slice.setdefault(pair.slice, []).append(pair.difference)
    worse = holm({name: sign_flip([-value for value in d]) for name, d in by_slice.items()}, _WORSE)
    return [
        _above(f"{SIBLING}{name}", by_slice[name], settings.slice_margin, LEVEL, name in worse)
        for name in sorted(by_slice)
    ]


def check_reference(reference: Reference, evaluation: Evaluation, settings: GateSettings) -> Check:
    """Check non-inferiority to a slice's best policy. FAIL if the upper bound is below the margin:
    more tasks would not help."""
    level = BEST_LEVEL / evaluation.looks.of(reference.slice)
    chained = reference.pairs is None
    pairs = reference.pairs
    if pairs is None:
        pairs = [pair for pair in evaluation.pairs if pair.slice == reference.slice]
    values = [pair.difference for pair in pairs]
    value, low = mean(values), bound(values, level)
    high = -bound([-item for item in values], level)
    if chained:
        # The bounds come from fresh tasks, the gap from earlier ones: their errors are independent.
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


def check_golden(pairs: Sequence[Pair], settings: GateSettings) -> list[Check]:
    """FAIL if more than `golden_losses` golden tasks fall below `golden_floor`; no check without
    any."""
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
