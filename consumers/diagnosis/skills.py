"""What follows from the labels of a skill: is it something that failures lack and successes have?

    ER-(r) = lacking failures  / (lacking + present failures)      0 where none applies
    ER+(r) = lacking successes / (lacking + present successes)
    delta(r) = ER-(r) - ER+(r)          coverage(r) = lacking failures / all failures

of labelling r. A labelling chooses a skill where coverage >= COVERAGE and delta >= DELTA; the skill
is selected where SELECTED of all labellings do. Without `LEAST_FAILURES` failures and
`LEAST_SUCCESSES` successes to which it applies, the evidence is insufficient. Source: TRACE
(pipeline/aggregate_capabilities.py and its paper); the two minima and the draw of each labelling
are ours (docs/adr/0073).
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from statistics import fmean, pstdev
from typing import Final

from events.learning import SkillContrast, SkillLabels, SkillsContrasted

COVERAGE: Final = 0.10
"""Least share of all failures that lack a skill (TRACE's rho)."""
DELTA: Final = 0.20
"""Least contrast (TRACE's delta)."""
SELECTED: Final = 0.8
"""Share of the labellings that have to choose a skill: 8 of 10."""
LEAST_FAILURES: Final = 5
LEAST_SUCCESSES: Final = 3


class SkillState(StrEnum):
    """What is known of a skill."""

    SELECTED = "selected"
    """Failures lack it and successes have it."""
    CONTAINED = "contained"
    """It would be selected, and most of its failures lack another one that is."""
    REJECTED = "rejected"
    """Successes lack it as well, or few failures do."""
    INSUFFICIENT = "insufficient"
    """It applies to too few rollouts to tell."""
    ABSENT = "absent"
    """The last discovery had no such candidate any more."""


@dataclass(frozen=True, slots=True)
class SkillMeasure:
    """The figures of a skill over its labellings: means, and population standard deviations."""

    state: SkillState
    delta: float
    delta_deviation: float
    coverage: float
    coverage_deviation: float
    selected: int
    """Labellings that choose it."""
    labellings: int


def compute_delta(labels: SkillLabels) -> float:
    """Return the contrast of one labelling, between -1 and 1."""
    lacking = _divide(labels.lacking_failures, labels.present_failures)
    return lacking - _divide(labels.lacking_successes, labels.present_successes)


def compute_coverage(labels: SkillLabels) -> float:
    """Return the share of all failures that lack the skill in one labelling; 0 without any."""
    return labels.lacking_failures / labels.failures if labels.failures else 0.0


def measure_skills(data: SkillsContrasted) -> dict[str, SkillMeasure]:
    """Return skill -> its figures, the largest contrast first."""
    measured = {item.skill: _measure(item) for item in data.skills}
    chosen = {name for name, item in measured.items() if item.state is SkillState.SELECTED}
    contained = {
        item.skill for item in data.skills if item.skill in chosen and item.within in chosen
    }
    for name in contained:
        measured[name] = replace(measured[name], state=SkillState.CONTAINED)
    return dict(sorted(measured.items(), key=lambda pair: (-pair[1].delta, pair[0])))


def _measure(item: SkillContrast) -> SkillMeasure:
    deltas = [compute_delta(labels) for labels in item.labellings]
    coverages = [compute_coverage(labels) for labels in item.labellings]
    chosen = sum(
        delta >= DELTA and coverage >= COVERAGE
        for delta, coverage in zip(deltas, coverages, strict=True)
    )
    return SkillMeasure(
        _decide(item, chosen),
        fmean(deltas),
        pstdev(deltas),
        fmean(coverages),
        pstdev(coverages),
        chosen,
        len(item.labellings),
    )


def _decide(item: SkillContrast, chosen: int) -> SkillState:
    if item.failures < LEAST_FAILURES or item.successes < LEAST_SUCCESSES:
        return SkillState.INSUFFICIENT
    enough = chosen >= ceil(SELECTED * len(item.labellings))
    return SkillState.SELECTED if enough else SkillState.REJECTED


def _divide(lacking: int, present: int) -> float:
    return lacking / (lacking + present) if lacking + present else 0.0
