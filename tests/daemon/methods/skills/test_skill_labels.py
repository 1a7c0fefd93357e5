"""Candidates for skills and their labels, by rule, over rollouts that are written here."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from consumers.diagnosis.round_counts import Pair
from consumers.methods.skills.measures import SkillState, measure_skills
from consumers.methods.skills.reads import ContrastRollout
from daemon.methods.skills.discovery import describe_contrast
from daemon.methods.skills.labels import (
    BadLabelling,
    Candidate,
    Label,
    LabelledRollouts,
    Labelling,
    RuleCandidate,
    find_candidates,
    find_containers,
    label,
    label_by_rule,
)
from events.learning import SkillContrast, SkillsContrasted


def rollout(number: int, pattern: str = "", **changes: Any) -> ContrastRollout:
    """One that failed by a pattern, or a success."""
    fields: dict[str, Any] = {
        "rollout": f"r{number:04}", "task": f"t{number}", "failed": bool(pattern),
        "pattern": pattern or None, "has_loop": pattern.startswith("tool_loop"),
        "tools": frozenset({"get", "cancel"}),
    }  # fmt: skip
    return ContrastRollout(**{**fields, **changes})


def several(count: int, first: int, pattern: str = "", **changes: Any) -> list[ContrastRollout]:
    return [rollout(first + number, pattern, **changes) for number in range(count)]


CANCELS = [*several(6, 0, "wrong_entity|cancel"), *several(4, 10, "over_cautious|cancel")]
RETURNS = several(8, 20, "over_cautious|return", tools=frozenset({"get", "return"}))
LOOPS = several(5, 30, "tool_loop|*")
SUCCESSES = several(30, 100)


def names(rollouts: Sequence[ContrastRollout]) -> dict[str, RuleCandidate]:
    return {item.skill: item for item in find_candidates(rollouts)}


def contrast(rollouts: Sequence[ContrastRollout]) -> SkillsContrasted:
    return describe_contrast(Pair("agent", "base"), 0, 3, label_by_rule(rollouts))


def states(rollouts: Sequence[ContrastRollout]) -> dict[str, str]:
    return {name: item.state.value for name, item in measure_skills(contrast(rollouts)).items()}


def test_candidates_are_unions_of_patterns_by_tool_and_by_category() -> None:
    candidates = names([*CANCELS, *RETURNS, *LOOPS, *SUCCESSES])
    assert list(candidates) == ["over_cautious", "cancel", "return", "wrong_entity", "tool_loop"]
    assert candidates["cancel"].patterns == ("over_cautious|cancel", "wrong_entity|cancel")
    assert candidates["over_cautious"].patterns == ("over_cautious|cancel", "over_cautious|return")
    assert candidates["over_cautious"].tools == {"cancel", "return"}
    assert candidates["tool_loop"].is_general


def test_of_two_that_the_same_failures_lack_the_tools_is_kept() -> None:
    assert list(names(several(4, 0, "wrong_entity|cancel"))) == ["cancel"]


def test_what_one_failure_shows_and_what_no_rule_explains_is_no_candidate() -> None:
    unexplained = several(5, 0, failed=True, has_loop=True)
    assert names([*unexplained, rollout(9, "wrong_entity|cancel"), *SUCCESSES]) == {}


def test_there_are_at_most_ten_candidates() -> None:
    long = "t" * 96
    many = [item for n in range(200) for item in several(2, 2 * n, f"wrong_entity|{long}{n:04}")]
    data = contrast([*many, *several(30, 1000)])
    assert len(data.skills) == 10
    assert data.skills[0].skill == "wrong_entity"
    assert "and 192 more tools" in data.skills[0].description
    assert len(data.skills[0].patterns) == 200


def test_a_tool_with_the_name_of_a_category_is_told_apart() -> None:
    failures = [*several(3, 0, "tool_loop|*"), *several(4, 10, "wrong_entity|tool_loop")]
    failures += several(5, 20, "wrong_tool|tool:tool_loop")
    candidates = names(failures)
    assert {name: item.tool for name, item in candidates.items() if item.tool} == {
        "tool:tool_loop": "tool:tool_loop", "tool:tool:tool_loop": "tool_loop",
    }  # fmt: skip
    assert candidates["tool_loop"].category == "tool_loop"


def test_a_rollout_lacks_has_or_does_not_need_a_skill() -> None:
    candidates = names([*CANCELS, *RETURNS, *LOOPS, *SUCCESSES])
    cancel, cautious, loop = (candidates[n] for n in ("cancel", "over_cautious", "tool_loop"))
    assert label(cancel, CANCELS[0]) is Label.LACKING
    assert label(cancel, LOOPS[0]) is Label.PRESENT, "it failed at something else"
    assert label(cancel, SUCCESSES[0]) is Label.PRESENT
    assert label(cancel, RETURNS[0]) is Label.NA
    assert label(cautious, CANCELS[0]) is Label.PRESENT
    assert label(cautious, CANCELS[-1]) is Label.LACKING
    assert label(loop, rollout(1, has_loop=True)) is Label.LACKING
    assert label(loop, RETURNS[0]) is Label.PRESENT
    unexplained = rollout(2, failed=True)
    assert label(cancel, unexplained) is Label.PRESENT


def test_the_failures_of_a_category_are_those_of_its_patterns() -> None:
    """Failures of another category that were refused a call as well do not count for it."""
    refused = several(20, 0, "wrong_entity|cancel")
    bad = several(2, 50, "incorrect_arguments|return")
    measured = measure_skills(contrast([*refused, *bad, *SUCCESSES]))
    assert measured["cancel"].state is SkillState.SELECTED
    assert "incorrect_arguments" not in measured, "the tool's two failures are the same"
    assert measured["return"].state is not SkillState.SELECTED


def test_what_failures_lack_is_selected_and_what_successes_lack_as_well_is_not() -> None:
    looping = several(30, 200, has_loop=True)
    loops = [*LOOPS, *several(5, 40, "tool_loop|*")]
    measured = measure_skills(contrast([*CANCELS, *loops, *SUCCESSES, *looping]))
    assert measured["cancel"].state is SkillState.SELECTED
    assert measured["tool_loop"].state is SkillState.REJECTED
    assert abs(measured["tool_loop"].delta) < 0.1, "10 of 20 failures loop, and 30 of 60 successes"


def test_without_successes_the_evidence_is_insufficient() -> None:
    assert states(CANCELS)["cancel"] == SkillState.INSUFFICIENT


def test_the_rollouts_of_a_task_are_drawn_together() -> None:
    """Of two tasks, one with four failures that lack a skill and one with four that do not, a draw
    has all of either or none."""
    twice = [
        *several(4, 0, "wrong_entity|cancel", task="t"),
        *several(4, 10, "over_cautious|cancel", task="u"),
    ]
    data = contrast([*twice, *several(8, 20)])
    counts = [item.lacking_failures for item in find(data, "wrong_entity").labellings]
    assert len(counts) == 10
    assert all(count % 4 == 0 for count in counts)
    assert len(set(counts)) > 1


def test_the_names_of_tasks_have_no_influence() -> None:
    rollouts = [*CANCELS, *RETURNS, *SUCCESSES]
    renamed = [replace(item, task=f"{999 - place}") for place, item in enumerate(rollouts)]
    assert contrast(rollouts) == contrast(renamed)


def lists(candidate: RuleCandidate, rollouts: Sequence[ContrastRollout]) -> dict[Label, list[str]]:
    given: dict[Label, list[str]] = {name: [] for name in Label}
    for item in rollouts:
        given[label(candidate, item)].append(item.rollout)
    return given


def test_a_labelling_that_is_no_partition_is_refused() -> None:
    rollouts = [*CANCELS, *SUCCESSES]
    candidates = find_candidates(rollouts)
    right = {item.skill: lists(item, rollouts) for item in candidates}
    ids = [item.rollout for item in rollouts]
    assert label_by_rule(rollouts).labellings == (Labelling.of(right, list(right), ids),) * 10
    first = candidates[0].skill

    def refuse(changed: dict[Label, list[str]], reason: str) -> None:
        with pytest.raises(BadLabelling, match=reason):
            Labelling.of({**right, first: changed}, list(right), ids)

    given = right[first]
    refuse({**given, Label.NA: [*given[Label.NA], "r0000"]}, "labels rollout r0000 twice")
    refuse({**given, Label.PRESENT: given[Label.PRESENT][1:]}, "other rollouts than there are")
    refuse({**given, Label.NA: [*given[Label.NA], "made-up"]}, "made-up")
    with pytest.raises(BadLabelling, match="other skills than the candidates: invented"):
        Labelling.of({**right, "invented": given}, list(right), ids)


def find(data: SkillsContrasted, skill: str) -> SkillContrast:
    return next(item for item in data.skills if item.skill == skill)


def test_a_candidate_that_lies_within_a_larger_one_says_so() -> None:
    data = contrast([*CANCELS, *several(9, 60, "wrong_entity|cancel"), *SUCCESSES])
    assert find(data, "wrong_entity").within == ("cancel",)
    assert find(data, "over_cautious").within == ("cancel",)
    assert find(data, "cancel").within == ()


def test_a_candidate_that_no_failure_lacks_lies_in_none() -> None:
    larger = Candidate("larger", "", (), frozenset({"r1", "r2"}))
    assert find_containers([larger, Candidate("empty", "", (), frozenset())])["empty"] == ()


def test_what_applies_is_what_eight_labellings_of_ten_say() -> None:
    rollouts = (*several(10, 0, "wrong_entity|cancel"), *several(10, 100))
    ids = [item.rollout for item in rollouts]
    whole = Labelling({"cancel": dict.fromkeys(ids, Label.PRESENT)})
    nothing = Labelling({"cancel": dict.fromkeys(ids, Label.NA)})
    candidates = (Candidate("cancel", "", (), frozenset(ids[:10])),)

    def count(others: int) -> int:
        labellings = (*[whole] * (10 - others), *[nothing] * others)
        labelled = LabelledRollouts(rollouts, candidates, labellings)
        return describe_contrast(Pair("agent", "base"), 0, 3, labelled).skills[0].failures

    assert (count(2), count(3)) == (10, 0)
