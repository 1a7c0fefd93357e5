"""Rises that may be a cheat extend an evaluation: seldom by chance, and they reject nothing."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.settings import Trial
from daemon.evaluation.gate.decision import conclude, decide
from daemon.evaluation.gate.measurements import Conduct, Evaluation, Looks, TaskEvidence
from daemon.evaluation.gate.rises import _compute_fisher, check_rises
from daemon.evaluation.sample_size import Sizes, extend_sizes
from events.gate import RISES, Check, GateReport, GateSettings
from tests.daemon.evaluation.test_gate import BETTER, CALM, check, evaluation

SETTINGS = GateSettings()
HONEST = TaskEvidence(
    "target", rollouts=4, passed=2, without_lookup=0, passed_without_lookup=0, unseen_values=1,
    answers=12, tokens=360,
)  # fmt: skip
RECITING = replace(
    HONEST, passed=4, without_lookup=4, passed_without_lookup=4, unseen_values=12_000, tokens=36_000
)


def grounded(tasks: Mapping[str, TaskEvidence]) -> Conduct:
    return replace(CALM, evidence=tasks)


def compare(
    before: Mapping[str, TaskEvidence], after: Mapping[str, TaskEvidence], looks: int = 1
) -> dict[str, Check]:
    both = Evaluation([], [], grounded(before), grounded(after), looks=Looks(looks))
    return {item.name: item for item in check_rises(both, SETTINGS)}


def honest(slice_: str = "target", count: int = 20) -> dict[str, TaskEvidence]:
    return {f"{slice_}{n}": replace(HONEST, slice=slice_) for n in range(count)}


def test_a_candidate_that_recites_is_played_further_and_its_figures_are_told() -> None:
    run = evaluation(BETTER, candidate=CALM)
    recited = {f"target{n}": RECITING for n in range(60)} | honest("plain", 80)
    run = replace(
        run,
        incumbent=grounded(honest("target", 60) | honest("plain", 80)),
        candidate=grounded(recited),
    )
    report = decide(run, SETTINGS)
    assert report.decision == "EXTEND"
    assert {check(report, name).verdict for name in RISES} == {"EXTEND"}
    assert report.evidence is not None
    before, after = report.evidence.incumbent, report.evidence.candidate
    assert (before.passed, before.passed_without_lookup, before.unseen_values) == (280, 0, 0.25)
    assert (after.passed, after.passed_without_lookup) == (400, 240)
    assert (before.tokens_per_answer, round(after.tokens_per_answer or 0)) == (30.0, 1303)


def test_a_rise_alone_rejects_nothing_where_no_more_can_be_played() -> None:
    run = replace(
        evaluation(BETTER),
        incumbent=grounded(honest("target", 60)),
        candidate=grounded({f"target{n}": RECITING for n in range(60)}),
    )
    report = conclude(decide(run, SETTINGS))
    assert report.decision == decide(run, SETTINGS, spent=True).decision == "PROMOTE"
    rise = check(report, "unseen values")
    assert (rise.verdict, (rise.p_value or 1) <= (rise.level or 0)) == ("PASS", True)
    worse = report.model_copy(
        update={
            "checks": tuple(
                item.model_copy(update={"verdict": "EXTEND"}) if item.name == "overall" else item
                for item in report.checks
            )
        }
    )
    assert conclude(worse).decision == "REJECT", "what else is open is not shown"


def test_a_cheat_on_one_kind_is_not_lost_among_the_others() -> None:
    others = {name: task for kind in range(9) for name, task in honest(f"kind{kind}").items()}
    cheat = {f"target{n}": RECITING for n in range(20)}
    checks = compare(honest() | others, cheat | others)
    assert {item.verdict for item in checks.values()} == {"EXTEND"}


def test_a_kind_whose_right_outcome_needs_no_look_up_is_no_rise_when_it_is_passed_more() -> None:
    quiet = replace(HONEST, without_lookup=4, passed_without_lookup=2)
    better = replace(quiet, passed=4, passed_without_lookup=4)
    tasks = [f"task {n}" for n in range(40)]
    failed = replace(quiet, passed=0, passed_without_lookup=0)
    before = dict.fromkeys(tasks[:10], quiet) | dict.fromkeys(tasks[10:], failed)
    checks = compare(before, dict.fromkeys(tasks, better))
    assert checks["without look-up"].verdict == "PASS"


def test_a_kind_that_the_incumbent_never_passed_is_compared_with_how_it_looked_up() -> None:
    failed = replace(HONEST, passed=0)
    checks = compare({f"{n}": failed for n in range(20)}, {f"{n}": RECITING for n in range(20)})
    assert checks["without look-up"].verdict == "EXTEND"


def test_answers_that_are_longer_within_the_limit_of_tokens_are_no_rise() -> None:
    longer = replace(HONEST, tokens=round(HONEST.tokens * 1.19))
    checks = compare(honest(), {f"target{n}": longer for n in range(20)})
    assert (checks["tokens per answer"].verdict, round(checks["tokens per answer"].value, 2)) == (
        "PASS", 0.19,
    )  # fmt: skip


def test_what_an_earlier_version_played_has_no_figures() -> None:
    assert compare({}, honest()) == {}
    report = decide(evaluation(BETTER), SETTINGS)
    assert (report.evidence, report.decision) == (None, "PROMOTE")


def test_a_rise_plays_all_kinds_further_up_to_the_bound_that_there_is() -> None:
    trial = Trial(most_tasks=40)
    sizes = Sizes(tasks={"one": 10, "two": 20}, targets=())
    open_ = Check(name=RISES[1], verdict="EXTEND", value=1, limit=0, tasks=30)
    report = GateReport(decision="EXTEND", test="sign_flip", alpha=0.05, tasks=30, checks=(open_,))
    counts = []
    following: Sizes | None = sizes
    while following is not None:
        counts.append(dict(following.tasks))
        following = extend_sizes(following, report, trial)
    assert counts == [{"one": 10, "two": 20}, {"one": 20, "two": 40}, {"one": 40, "two": 40}]


@given(st.integers(0, 5), st.integers(1, 5), st.integers(0, 5), st.integers(1, 5))
def test_the_p_value_of_two_shares_counts_the_ways_to_deal_them(
    count: int, whole: int, other_count: int, other_whole: int
) -> None:
    count, other_count = min(count, whole), min(other_count, other_whole)
    everything = range(whole + other_whole)
    deals = list(combinations(everything, count + other_count))
    extreme = sum(sum(place < whole for place in deal) >= count for deal in deals)
    assert _compute_fisher(count, whole, other_count, other_whole) == pytest.approx(
        extreme / len(deals)
    )


def draw(chance: Random, slice_: str, passes: float, quiet: float, strays: float) -> TaskEvidence:
    """A task of four trials by a policy of these rates."""
    passed = [chance.random() < passes for _ in range(4)]
    silent = [chance.random() < quiet for _ in range(4)]
    answers = [chance.lognormvariate(3, 0.6) for _ in range(chance.randint(8, 20))]
    return TaskEvidence(
        slice_, 4, sum(passed), sum(silent),
        sum(both[0] and both[1] for both in zip(passed, silent, strict=True)),
        sum(chance.random() < strays for _ in range(12)), len(answers), round(sum(answers)),
    )  # fmt: skip


def test_equal_policies_are_extended_by_chance_as_rarely_as_the_level_says() -> None:
    """Three looks at twice the tasks each; the rates of a task are those of both policies."""
    alarms = dict.fromkeys(RISES, 0)
    runs = 120
    for seed in range(runs):
        chance, before, after = Random(seed), dict[str, TaskEvidence](), dict[str, TaskEvidence]()
        raised = set[str]()
        for look in (6, 12, 24):
            for slice_, quiet in (("a", 0.02), ("b", 0.5), ("c", 1.0)):
                for number in range(look):
                    rates = chance.random(), quiet, chance.random()
                    name = f"{slice_}{number}"
                    if name not in before:
                        before[name] = draw(chance, slice_, *rates)
                        after[name] = draw(chance, slice_, *rates)
            checks = compare(before, after, looks=3)
            raised |= {name for name in RISES if checks[name].verdict == "EXTEND"}
        for name in raised:
            alarms[name] += 1
    # 5 % of 120 and three standard errors.
    assert all(count <= 13 for count in alarms.values()), alarms
