"""What follows from the labels of a skill: the formulas of TRACE, with numbers worked by hand."""

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from consumers.methods.skills.measures import (
    SkillMeasure,
    SkillState,
    compute_coverage,
    compute_delta,
    is_chosen,
    measure_skills,
)
from events.learning import SkillContrast, SkillLabels, SkillsContrasted


def labels(*counts: int, failures: int = 40) -> SkillLabels:
    """Lacking and present failures, lacking and present successes."""
    names = ("lacking_failures", "present_failures", "lacking_successes", "present_successes")
    return SkillLabels(failures=failures, **dict(zip(names, counts, strict=True)))


def contrast(skill: str, *labellings: SkillLabels, **changes: Any) -> SkillContrast:
    fields: dict[str, Any] = {
        "description": "", "patterns": (f"wrong_entity|{skill}",), "failures": 20, "successes": 20,
        "examples": (),
    }  # fmt: skip
    return SkillContrast(skill=skill, labellings=labellings, **{**fields, **changes})


def measure(*skills: SkillContrast) -> dict[str, SkillMeasure]:
    data = SkillsContrasted(
        alias="agent", base="base", since=0, round=3, failures=40, successes=40, skills=skills
    )
    return measure_skills(data)


def states(*skills: SkillContrast) -> dict[str, SkillState]:
    return {name: item.state for name, item in measure(*skills).items()}


CLEAR = labels(12, 8, 2, 18)
"""ER- .6, ER+ .1: a contrast of .5; coverage .3."""
EQUAL = labels(12, 8, 12, 8)
RARE = labels(3, 0, 0, 20)


def test_contrast_and_coverage_are_traces() -> None:
    assert compute_delta(CLEAR) == Fraction(1, 2)
    assert compute_coverage(CLEAR) == Fraction(3, 10)
    assert compute_delta(EQUAL) == 0
    assert compute_delta(labels(0, 0, 5, 5)) == Fraction(-1, 2), "no failure: 0 less .5"
    assert compute_coverage(labels(0, 0, 0, 0, failures=0)) == 0


def test_a_skill_is_selected_by_eight_labellings_of_ten() -> None:
    eight = [*8 * [CLEAR], *2 * [EQUAL]]
    seven = [*7 * [CLEAR], *3 * [EQUAL]]
    assert states(contrast("eight", *eight), contrast("seven", *seven)) == {
        "eight": SkillState.SELECTED, "seven": SkillState.REJECTED,
    }  # fmt: skip


def test_figures_are_means_and_population_deviations() -> None:
    figures = measure(contrast("a", CLEAR, EQUAL))["a"]
    assert figures.delta == pytest.approx(0.25)
    assert figures.delta_deviation == pytest.approx(0.25)
    assert figures.coverage == pytest.approx(0.3)
    assert figures.coverage_deviation == 0
    assert (figures.selected, figures.labellings) == (1, 2)


def test_what_successes_lack_as_well_and_what_is_rare_is_rejected() -> None:
    assert states(contrast("equal", *10 * [EQUAL]), contrast("rare", *10 * [RARE])) == {
        "rare": SkillState.REJECTED, "equal": SkillState.REJECTED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("failures", "successes", "state"),
    [(5, 3, "selected"), (4, 3, "insufficient"), (5, 2, "insufficient")],
)
def test_few_rollouts_are_no_evidence(failures: int, successes: int, state: str) -> None:
    item = contrast("a", *10 * [CLEAR], failures=failures, successes=successes)
    assert states(item) == {"a": state}


def test_a_skill_within_another_is_selected_only_where_none_of_these_is() -> None:
    inner = contrast("inner", *10 * [CLEAR], within=("largest", "outer"))
    largest = contrast("largest", *10 * [EQUAL])
    outer = contrast("outer", *10 * [CLEAR])
    measured = measure(largest, outer, inner)
    assert measured["inner"].state == SkillState.CONTAINED
    assert measured["inner"].within == "outer", "the largest is rejected"
    alone = measure(largest, contrast("outer", *10 * [EQUAL]), inner)
    assert alone["inner"].state == SkillState.SELECTED
    assert alone["inner"].within is None


def test_a_skill_is_contained_in_selected_ones_alone() -> None:
    """The third overlaps the second, which is contained itself, and not the first."""
    first = contrast("first", *10 * [CLEAR])
    second = contrast("second", *10 * [CLEAR], within=("first",))
    third = contrast("third", *10 * [CLEAR], within=("second",))
    assert states(first, second, third) == {
        "first": SkillState.SELECTED, "second": SkillState.CONTAINED, "third": SkillState.SELECTED,
    }  # fmt: skip


def test_thresholds_are_exact() -> None:
    """In floating point, .6 less .4 is below .2."""
    assert is_chosen(labels(12, 8, 8, 12))
    assert not is_chosen(labels(119, 81, 80, 120, failures=1000))
    assert is_chosen(labels(4, 0, 0, 9, failures=40))
    assert not is_chosen(labels(4, 0, 0, 9, failures=41))


def test_labels_that_are_more_than_the_rollouts_are_refused() -> None:
    with pytest.raises(ValidationError, match="more than the 10 that were drawn"):
        labels(8, 3, 0, 0, failures=10)


def test_two_skills_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="two candidates have one name"):
        states(contrast("a", CLEAR), contrast("a", EQUAL))
