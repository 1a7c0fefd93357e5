"""Compute the figures of skills from their labels: contrast (delta), coverage, and the state.

    ER-(r) = lacking failures  / (lacking + present failures)      0 where none applies
    ER+(r) = lacking successes / (lacking + present successes)
    delta(r) = ER-(r) - ER+(r)          coverage(r) = lacking failures / all failures

for labelling r. A labelling chooses a skill if both are large enough; a refused one chooses none.
Eight of ten labellings select a skill. The evidence is insufficient if the skill applies to fewer
than `LEAST_FAILURES` failures or `LEAST_SUCCESSES` successes. Source: TRACE
(pipeline/aggregate_capabilities.py and its paper); the two minima and the draw of each labelling
are ours (docs/adr/0073).
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from statistics import fmean, pstdev
from typing import Final

from events.learning import SkillContrast, SkillLabels, SkillsContrasted

LEAST_COVERAGE: Final = Fraction(1, 10)
"""Least share of all failures that lack a skill (TRACE's rho)."""
LEAST_DELTA: Final = Fraction(1, 5)
"""Least contrast of a skill (TRACE's delta)."""
LEAST_SELECTED: Final = Fraction(8, 10)
"""Least share of the labellings that choose a skill."""
LEAST_FAILURES: Final = 5
LEAST_SUCCESSES: Final = 3


class SkillState(StrEnum):
    """State of a skill after a comparison."""

    SELECTED = "selected"
    """Enough failures lack the skill, and successes have it."""
    CONTAINED = "contained"
    """It would be selected, but most failures that lack it also lack a larger selected skill."""
    REJECTED = "rejected"
    """Successes lack it as often, or few failures lack it."""
    INSUFFICIENT = "insufficient"
    """It applies to too few rollouts to tell."""
    ABSENT = "absent"
    """The last comparison had no such candidate."""


@dataclass(frozen=True, slots=True)
class SkillMeasure:
    """The figures of a skill over its labellings: means, and population standard deviations."""

    state: SkillState
    delta: float
    delta_deviation: float
    coverage: float
    coverage_deviation: float
    selected: int
    """Number of labellings that choose the skill."""
    labellings: int
    """Number of all labellings, including refused ones."""
    within: str | None = None
    """Selected skill that contains this one, if any."""


def compute_delta(labels: SkillLabels) -> Fraction:
    """Return the contrast of one labelling, between -1 and 1."""
    lacking = _divide(labels.lacking_failures, labels.present_failures)
    return lacking - _divide(labels.lacking_successes, labels.present_successes)


def compute_coverage(labels: SkillLabels) -> Fraction:
    """Return the share of all failures that lack the skill in one labelling; 0 without any."""
    return _divide(labels.lacking_failures, labels.failures - labels.lacking_failures)


def is_chosen(labels: SkillLabels) -> bool:
    """Return whether a labelling chooses the skill, in exact fractions: 12/20 - 8/20 is 1/5."""
    return compute_delta(labels) >= LEAST_DELTA and compute_coverage(labels) >= LEAST_COVERAGE


def measure_skills(data: SkillsContrasted) -> dict[str, SkillMeasure]:
    """Return skill -> its figures; first the one that failures lack most beyond successes."""
    measured = {item.skill: _measure(item, data.refused) for item in data.skills}
    selected: set[str] = set()
    for item in data.skills:
        if measured[item.skill].state is not SkillState.SELECTED:
            continue
        # A skill comes after the skills that contain it.
        container = next((name for name in item.within if name in selected), None)
        if container is None:
            selected.add(item.skill)
        else:
            state = SkillState.CONTAINED
            measured[item.skill] = replace(measured[item.skill], state=state, within=container)
    return dict(sorted(measured.items(), key=lambda pair: (-pair[1].delta, pair[0])))


def _measure(item: SkillContrast, refused: int) -> SkillMeasure:
    deltas = [float(compute_delta(labels)) for labels in item.labellings]
    coverages = [float(compute_coverage(labels)) for labels in item.labellings]
    selected = sum(map(is_chosen, item.labellings))
    labellings = len(item.labellings) + refused
    return SkillMeasure(
        _decide(item, selected, labellings),
        fmean(deltas),
        pstdev(deltas),
        fmean(coverages),
        pstdev(coverages),
        selected,
        labellings,
    )


def _decide(item: SkillContrast, selected: int, labellings: int) -> SkillState:
    if item.failures < LEAST_FAILURES or item.successes < LEAST_SUCCESSES:
        return SkillState.INSUFFICIENT
    is_enough = selected >= LEAST_SELECTED * labellings
    return SkillState.SELECTED if is_enough else SkillState.REJECTED


def _divide(part: int, rest: int) -> Fraction:
    return Fraction(part, part + rest) if part + rest else Fraction(0)
