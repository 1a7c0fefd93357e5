"""The gate: its tests keep their error rates, and each condition stops a candidate."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from math import comb, sqrt
from random import Random
from statistics import NormalDist, mean

import pytest

from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.levels import bound, holm, level_of, rate, spend_alpha
from daemon.evaluation.gate.measurements import Conduct, Evaluation, Looks
from daemon.evaluation.gate.pairs import (
    Pair,
    TooFewTrials,
    count_surplus,
    fail_surplus,
    pair_outcomes,
)
from daemon.evaluation.gate.power import detectable, tasks_for
from daemon.evaluation.gate.target_tests import EProcess, sign_flip, verdict_of
from daemon.evaluation.targets import PlannedTarget
from envs.statistics import Outcomes
from events.gate import Check, GateReport, GateSettings
from tests.daemon.evaluation.simulation import chances, many, pairs

TARGET = PlannedTarget.of_count("target", 1)
CALM = Conduct(rollouts=100, violations=2, tool_calls=400, malformed=4, tokens=20_000)


def alike(count: int, slice: str, before: float, after: float, trials: int = 4) -> list[Pair]:
    """Tasks whose shares of passed trials are these."""

    def verdicts(share: float) -> tuple[bool, ...]:
        return tuple(n < round(share * trials) for n in range(trials))

    return [Pair(f"{slice}{n}", slice, verdicts(before), verdicts(after)) for n in range(count)]


def evaluation(
    run: Sequence[Pair],
    planned: int | None = None,
    candidate: Conduct = CALM,
    golden: Sequence[Pair] = (),
) -> Evaluation:
    tasks = sum(pair.slice == "target" for pair in run)
    target = PlannedTarget.of_count("target", planned or max(1, tasks))
    return Evaluation([target], run, CALM, candidate, golden)


BETTER = alike(60, "target", 0.25, 0.75) + alike(80, "plain", 1, 1)


def check(report: GateReport, name: str) -> Check:
    (found,) = (one for one in report.checks if one.name == name)
    return found


def brute_force(differences: Sequence[float]) -> float:
    seen = sum(differences)
    sums = [
        sum(sign * value for sign, value in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(total >= seen - 1e-9 for total in sums) / len(sums)


@pytest.mark.parametrize("seed", range(8))
def test_the_p_value_is_the_share_of_sign_flips_at_least_as_large(seed: int) -> None:
    chance = Random(seed)
    differences = [chance.randint(-4, 4) / 4 for _ in range(9)]
    differences += [chance.choice((-1, 0, 1)) * 2 / 3]  # a task that lost a trial
    assert sign_flip(differences) == pytest.approx(brute_force(differences))


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (0, 5), (3, 9), (7, 7), (9, 2)])
def test_with_one_trial_it_is_mcnemars_exact_test(lost: int, won: int) -> None:
    n = lost + won
    binomial = sum(comb(n, j) for j in range(won, n + 1)) / 2**n
    assert sign_flip([-1.0] * lost + [1.0] * won + [0.0] * 20) == pytest.approx(binomial)


@pytest.mark.parametrize(("tasks", "trials"), [(60, 4), (100, 1)])
def test_a_candidate_that_is_no_better_passes_as_rarely_as_alpha_says(
    tasks: int, trials: int
) -> None:
    count = 600
    passed = mean(sign_flip(d) <= 0.05 for d in many(1, count, tasks, trials, 0.0))
    assert passed <= 0.05 + 3 * sqrt(0.05 * 0.95 / count)


def test_a_gain_of_five_points_is_found_as_often_as_the_planned_size_promises() -> None:
    tasks = tasks_for(0.05, between=0.0085, within=0.274, trials=4)
    assert tasks == 191
    found = mean(sign_flip(d) <= 0.05 for d in many(2, 150, tasks, 4, 0.05))
    assert found >= 0.8 - 3 * sqrt(0.8 * 0.2 / 150)


def test_an_e_process_reaches_20_without_a_gain_in_at_most_one_of_20_runs() -> None:
    count = 600
    reached = 0
    for differences in many(3, count, 300, 4, 0.0):
        process = EProcess()
        for value in differences:
            process.add(value)
        reached += process.highest >= 20
    assert reached / count <= 0.05


def test_an_e_process_stops_early_for_a_large_gain() -> None:
    settings = GateSettings(test="e_process")
    report = decide(evaluation(BETTER, planned=1_000), settings)
    assert report.decision == "PROMOTE"
    assert report.tasks < 60
    assert report.e_value is not None
    assert report.e_value >= 20


def test_a_group_sequential_gate_keeps_alpha_over_its_four_looks() -> None:
    count = 600
    passed = mean(
        verdict_of(d, 120, "group_sequential", 0.05).verdict == "PASS"
        for d in many(4, count, 120, 4, 0.0)
    )
    assert passed <= 0.05 + 3 * sqrt(0.05 * 0.95 / count)


@pytest.mark.parametrize("planned", [1, 2, 3])
def test_a_group_sequential_gate_of_fewer_tasks_than_looks_decides(planned: int) -> None:
    verdicts = {verdict_of([1.0] * planned, planned, "group_sequential", 0.05).verdict}
    verdicts.add(verdict_of([-1.0] * planned, planned, "group_sequential", 0.05).verdict)
    assert verdicts == {"FAIL"}, "so few tasks show nothing"


def test_a_group_sequential_gate_waits_for_its_next_look() -> None:
    settings = GateSettings(test="group_sequential")
    wavering = pairs(Random(5), 60, 4, gain=0.05)
    report = decide(evaluation(wavering, planned=191), settings)
    assert report.decision == "EXTEND"
    assert check(report, "target").verdict == "EXTEND"


def test_a_candidate_that_wins_every_task_passes_at_the_first_look() -> None:
    """Its differences have no spread, which is no reason to fail it."""
    found = verdict_of([1.0] * 64, 64, "group_sequential", 0.05)
    assert (found.verdict, found.tasks) == ("PASS", 16)
    lost = verdict_of([-1.0] * 64, 64, "group_sequential", 0.05)
    assert (lost.verdict, lost.p_value) == ("FAIL", 1)


def test_two_tasks_that_are_nearly_alike_prove_nothing() -> None:
    found = verdict_of([0.5, 0.49, 0.5, 0.49, -1.0, -1.0, -1.0, -1.0], 8, "group_sequential", 0.05)
    assert found.verdict == "FAIL"


@pytest.mark.parametrize("expected", [0.3, 1, 3, 30])
def test_equal_policies_fail_by_their_violations_as_rarely_as_the_level_says(
    expected: float,
) -> None:
    """Neither count is taken for the rate, which nobody knows."""
    chance, count, rollouts = Random(f"violations {expected}"), 2_000, 200

    @cache
    def most(before: int) -> float:
        incumbent = replace(CALM, rollouts=rollouts, violations=before)
        found = Evaluation([TARGET], alike(1, "target", 0, 1), incumbent, incumbent)
        return check(decide(found, GateSettings()), "violations").limit

    def violations() -> int:
        return sum(chance.random() < expected / rollouts for _ in range(rollouts))

    failed = mean(violations() > most(violations()) for _ in range(count))
    assert failed <= 0.05 + 3 * sqrt(0.05 * 0.95 / count)


@pytest.mark.parametrize("alike", [False, True], ids=["trials alone", "trials alike"])
def test_equal_candidates_rarely_fail_by_violations(alike: bool) -> None:
    """By rollouts alone, 18.5 % failed where the four trials of each task come to the same."""
    chance, failed = Random(5), 0
    for _ in range(100):
        failed += violations_of(chance, 60, 0.1, 0.1, alike).verdict == "FAIL"
    assert failed <= 100 * 0.05 + 3 * sqrt(100 * 0.05 * 0.95)


def test_more_violations_fail_also_where_trials_of_a_task_come_to_the_same() -> None:
    chance = Random(6)
    found = [violations_of(chance, 60, 0.1, 0.4, alike=True).verdict for _ in range(10)]
    assert found.count("FAIL") >= 9


def violations_of(
    chance: Random, tasks: int, before: float, after: float, alike: bool, trials: int = 4
) -> Check:
    """The check of two that violate at these rates."""

    def conduct(rate: float) -> Conduct:
        violating = {}
        for task in range(tasks):
            first = chance.random() < rate
            others = [first if alike else chance.random() < rate for _ in range(trials - 1)]
            violating[f"{task}"] = mean((first, *others))
        number = round(trials * sum(violating.values()))
        return Conduct(tasks * trials, number, 400, 4, 20_000, violating=violating)

    few = BETTER[:4]
    found = replace(evaluation(few, candidate=conduct(after)), incumbent=conduct(before))
    return check(decide(found, GateSettings()), "violations")


def test_violations_are_told_as_rates_with_intervals_and_a_p_value() -> None:
    report = decide(evaluation(BETTER, candidate=Conduct(300, 9, 400, 4, 60_000)), GateSettings())
    found = check(report, "violations")
    assert (found.verdict, found.value) == ("PASS", 9)
    assert found.value <= found.limit
    assert found.incumbent is not None
    assert found.candidate is not None
    assert (found.incumbent.value, found.candidate.value) == (0.02, 0.03)
    assert found.candidate.low < 0.03 < found.candidate.high
    assert found.p_value is not None
    assert found.p_value > 0.05
    more = decide(
        evaluation(BETTER, candidate=Conduct(300, int(found.limit) + 1, 400, 4, 60_000)),
        GateSettings(),
    )
    assert check(more, "violations").verdict == "FAIL"


@pytest.mark.parametrize(
    ("count", "whole", "low", "high"),
    [(0, 10, 0, 0.3085), (10, 10, 0.6915, 1), (3, 20, 0.0321, 0.3789)],
)
def test_the_interval_of_a_rate_is_that_of_clopper_and_pearson(
    count: int, whole: int, low: float, high: float
) -> None:
    found = rate(count, whole)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_a_share_of_few_malformed_calls_is_chance_and_of_many_is_not() -> None:
    few = Conduct(100, 2, 40, 2, 20_000)
    found = check(decide(evaluation(BETTER, candidate=few), GateSettings()), "format")
    assert (found.value > found.limit, found.verdict) == (True, "PASS")
    many_calls = Conduct(100, 2, 4000, 300, 20_000)
    found = check(decide(evaluation(BETTER, candidate=many_calls), GateSettings()), "format")
    assert (found.value > found.limit, found.verdict) == (True, "FAIL")


def test_tokens_that_stray_widely_are_no_growth_and_a_growth_within_the_limit_is_none() -> None:
    before = replace(CALM, rollouts=10, tokens=2_000, token_spread=200.0)
    after = replace(before, tokens=2_600)
    found = replace(evaluation(BETTER), incumbent=before, candidate=after)
    assert check(decide(found, GateSettings()), "tokens").verdict == "PASS"
    sure = replace(found, incumbent=replace(before, token_spread=20.0))
    sure = replace(sure, candidate=replace(after, token_spread=20.0))
    assert check(decide(sure, GateSettings()), "tokens").verdict == "FAIL"
    little = replace(sure, candidate=replace(after, tokens=2_300, token_spread=1.0))
    assert check(decide(little, GateSettings()), "tokens").verdict == "PASS"


@pytest.mark.parametrize("looks", [1, 2, 4, 8])
def test_so_many_looks_at_twice_the_tasks_err_as_rarely_as_one(looks: int) -> None:
    chance, count, level = Random(f"looks {looks}"), 4_000, level_of(looks)
    threshold = NormalDist().inv_cdf(1 - level)

    def rejected() -> bool:
        total, size, looked = 0.0, 0, 1
        for _ in range(looks):
            total += chance.gauss(0, sqrt(looked - size))
            size, looked = looked, 2 * looked
            if total / sqrt(size) >= threshold:
                return True
        return False

    assert mean(rejected() for _ in range(count)) <= 0.05 + 3 * sqrt(0.05 * 0.95 / count)
    assert level_of(20) == 0.05 / 20


def test_a_slice_that_is_worse_by_the_margin_passes_rarely_however_often_it_is_looked_at() -> None:
    """Every look at 64, 128, 256 and 512 tasks is a chance to pass, and together they have 5 %."""
    chance, count, looks = Random("harmed"), 1_000, 4
    margin = GateSettings().slice_margin

    @cache
    def passes(lost: int, tasks: int) -> bool:
        return bound([-1.0] * lost + [0.0] * (tasks - lost), level_of(looks)) > -margin

    def promoted() -> bool:
        lost = [chance.random() < margin for _ in range(512)]
        return any(passes(sum(lost[:n]), n) for n in (64, 128, 256, 512))

    assert mean(promoted() for _ in range(count)) <= 0.05


def test_each_slice_spends_what_its_own_looks_leave_it() -> None:
    run = [*alike(60, "target", 0.25, 0.75), *alike(80, "often", 1, 1), *alike(80, "once", 1, 1)]
    looks = Looks(3, {"often": 3, "once": 1})
    report = decide(replace(evaluation(run), looks=looks), GateSettings())
    assert check(report, "slice once").level == 0.05
    assert check(report, "slice often").level == level_of(3) < 0.03
    assert check(report, "overall").level == check(report, "violations").level == level_of(3)
    lows = [check(report, f"slice {name}").low for name in ("often", "once")]
    assert lows[0] is not None
    assert lows[1] is not None
    assert lows[0] < lows[1]
    assert report.decision == "PROMOTE"


def test_a_better_candidate_that_harms_nothing_is_promoted() -> None:
    report = decide(evaluation(BETTER), GateSettings())
    assert report.decision == "PROMOTE"
    assert report.p_value is not None
    assert report.p_value < 1e-9
    assert {one.verdict for one in report.checks} == {"PASS"}


def test_fewer_tasks_than_planned_decide_nothing_whatever_they_say() -> None:
    report = decide(evaluation(BETTER, planned=61), GateSettings())
    assert report.decision == "EXTEND"
    assert report.p_value is None


def test_more_tasks_than_planned_are_no_second_chance() -> None:
    flat = alike(60, "target", 0.5, 0.5)
    report = decide(evaluation(flat + BETTER, planned=60), GateSettings())
    assert report.decision == "REJECT"
    assert report.tasks == 60


def test_a_gain_that_is_sure_and_too_small_is_not_enough() -> None:
    tiny = alike(400, "target", 0.5, 0.51, trials=100)
    report = decide(evaluation(tiny), GateSettings())
    assert report.p_value is not None
    assert report.p_value < 0.05
    assert check(report, "target").verdict == "FAIL"


def test_a_slice_that_got_worse_stops_it() -> None:
    harmed = alike(60, "target", 0.25, 1) + alike(40, "plain", 1, 0.75)
    report = decide(evaluation(harmed), GateSettings())
    assert report.decision == "REJECT"
    assert check(report, "slice plain").verdict == "FAIL"


def test_a_member_passes_with_a_loss_on_a_kind_that_it_will_not_answer() -> None:
    """A whole policy with the same figures is rejected, and a member is for what its target does
    besides."""
    run = (
        alike(60, "target", 0.25, 0.75)
        + alike(60, "sibling", 1, 0.87, trials=100)
        + alike(60, "plain", 1, 1)
    )
    whole = evaluation(run)
    assert decide(whole, GateSettings()).decision == "REJECT"
    member = replace(whole, siblings=frozenset({"sibling", "plain"}))
    report = decide(member, GateSettings())
    assert report.decision == "PROMOTE"
    assert check(report, "overall").tasks == 60
    assert check(report, "sibling sibling").value == pytest.approx(-0.13)
    assert check(report, "sibling sibling").verdict == "FAIL"
    assert check(report, "sibling plain").verdict == "PASS"
    worse = replace(member, candidate=replace(CALM, violations=20))
    assert decide(worse, GateSettings()).decision == "REJECT"
    assert check(decide(worse, GateSettings()), "violations").verdict == "FAIL"


def test_a_slice_of_too_few_tasks_asks_for_more_and_in_the_end_stops_it() -> None:
    few = alike(60, "target", 0.25, 0.75) + alike(10, "rare", 1, 1)
    report = decide(evaluation(few), GateSettings())
    assert report.decision == "EXTEND"
    assert check(report, "slice rare").verdict == "EXTEND"
    assert decide(evaluation(few), GateSettings(), spent=True).decision == "REJECT"


def test_a_few_failures_by_chance_in_a_small_slice_ask_for_more() -> None:
    unlucky = [*alike(1, "rare", 1, 0), *alike(10, "rare", 1, 1)[1:]]
    report = decide(evaluation(alike(60, "target", 0.25, 0.75) + unlucky), GateSettings())
    assert check(report, "slice rare").value < -GateSettings().slice_margin
    assert check(report, "slice rare").verdict == "EXTEND"
    assert report.decision == "EXTEND"


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (Conduct(100, 12, 400, 4, 20_000), "violations"),
        (Conduct(100, 2, 400, 14, 20_000), "format"),
        (Conduct(100, 2, 400, 4, 25_000), "tokens"),
    ],
)
def test_conduct_that_got_worse_stops_it(candidate: Conduct, name: str) -> None:
    report = decide(evaluation(BETTER, candidate=candidate), GateSettings())
    assert report.decision == "REJECT"
    assert [one.name for one in report.checks if one.verdict == "FAIL"] == [name]


def test_one_lost_golden_task_is_chance_and_two_are_not() -> None:
    kept, lost = alike(29, "golden", 1, 1, trials=8), alike(2, "golden", 1, 0.5, trials=8)
    settings = GateSettings()
    assert decide(evaluation(BETTER, golden=kept + lost[:1]), settings).decision == "PROMOTE"
    assert decide(evaluation(BETTER, golden=kept + lost), settings).decision == "REJECT"


def test_later_candidates_on_one_gate_set_may_spend_less() -> None:
    assert sum(spend_alpha(0.05, j) for j in range(1, 100_000)) == pytest.approx(0.05, abs=1e-6)
    assert decide(evaluation(BETTER), GateSettings()).alpha == 0.05
    assert decide(evaluation(BETTER), GateSettings(), attempt=1).alpha == spend_alpha(0.05, 1)


def test_a_trial_that_one_of_both_could_not_finish_counts_for_neither() -> None:
    (pair,) = pair_outcomes({"a": [True, None, True]}, {"a": [False, True, True]}, {"a": "x"}, 3)
    assert pair == Pair("a", "x", (True, True), (False, True))


def test_what_a_candidate_has_more_of_unjudged_trials_counts_as_failed() -> None:
    incumbent: Outcomes = {name: [True, None] for name in "abcd"}
    same: Outcomes = {name: [True, None] for name in "abcd"}
    assert fail_surplus(incumbent, same, "abcd") == same
    fewer = {name: [True, False] for name in "abcd"}
    assert fail_surplus(incumbent, fewer, "abcd") == fewer
    more = {name: [None, None] for name in "abcd"}
    assert fail_surplus(incumbent, more, "abcd") == {name: [False, None] for name in "abcd"}
    by_chance: Outcomes = {**same, "a": [None, None], "b": [None, None]}
    assert count_surplus(incumbent, by_chance, "abcd") == 0
    assert fail_surplus(incumbent, by_chance, "abcd") == by_chance


def test_the_surplus_of_unjudged_trials_is_spread_over_the_tasks() -> None:
    tasks = [f"t{number}" for number in range(20)]
    incumbent = {task: [None if task in tasks[:4] else True] for task in tasks}
    candidate = {task: [True if task in tasks[:4] else None] for task in tasks}
    assert count_surplus(incumbent, candidate, tasks) == 12
    outcomes = fail_surplus(incumbent, candidate, tasks)
    places = [place for place, task in enumerate(tasks) if outcomes[task] == [False]]
    assert len(places) == 12
    assert max(after - before for before, after in pairwise(places)) == 2


def draw_trials(chance: Random, escape: float, gain: float) -> tuple[Outcomes, Outcomes]:
    """One trial of each of 300 tasks by incumbent and candidate. Users err in a share of what the
    candidate fails, and such trials have no verdict."""
    incumbent: dict[str, list[bool | None]] = {}
    candidate: dict[str, list[bool | None]] = {}
    for number in range(300):
        before, after = chances(chance, gain)
        success = chance.random() < (after if gain else before)
        incumbent[f"t{number}"] = [chance.random() < before]
        candidate[f"t{number}"] = [None if not success and chance.random() < escape else success]
    return incumbent, candidate


def share_promoted(escape: float, gain: float, *, surplus_fails: bool) -> float:
    """The share of 60 evaluations whose target passes."""
    chance, promoted = Random(f"unjudged {escape} {gain}"), 0
    for _ in range(60):
        incumbent, candidate = draw_trials(chance, escape, gain)
        outcomes = (
            fail_surplus(incumbent, candidate, list(candidate)) if surplus_fails else candidate
        )
        judged = {task: "target" for task, trials in outcomes.items() if None not in trials}
        differences = [pair.difference for pair in pair_outcomes(incumbent, outcomes, judged, 1)]
        promoted += mean(differences) >= GateSettings().min_gain and sign_flip(differences) <= 0.05
    return promoted / 60


def test_excused_failures_promote_no_policy_that_is_as_good_as_the_incumbent() -> None:
    assert share_promoted(0.5, 0.0, surplus_fails=False) >= 0.5
    assert share_promoted(0.5, 0.0, surplus_fails=True) <= 0.15
    assert share_promoted(0.0, 0.1, surplus_fails=True) >= 0.5


def test_a_task_that_lost_two_trials_has_to_be_run_again() -> None:
    with pytest.raises(TooFewTrials, match="task a has 1 of 3"):
        pair_outcomes({"a": [True, None, True]}, {"a": [False, True, None]}, {"a": "x"}, 3)


def test_holm_rejects_in_order_of_evidence() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.5}, 0.1) == {"a", "b"}
    assert holm({"a": 0.04, "b": 0.06, "c": 0.06}, 0.1) == set()


def test_the_detectable_gain_is_that_of_the_table() -> None:
    (differences,) = many(6, 1, 164, 4, 0.0)
    found = detectable(differences, 0.05)
    assert found == pytest.approx(0.054, abs=0.012)
