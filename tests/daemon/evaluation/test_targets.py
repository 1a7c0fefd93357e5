"""Targets: what a cycle wrote, in the shares of its generators, tested together."""

from collections.abc import Sequence
from random import Random
from statistics import mean

import pytest

from daemon.config.settings import Trial
from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.measurements import Evaluation
from daemon.evaluation.gate.pairs import Pair
from daemon.evaluation.gate.target_tests import judge_targets, list_differences
from daemon.evaluation.sample_size import extend_sizes, looks_of, sizes_of
from daemon.evaluation.targets import LEAST, MOST, PlannedTarget, Target, find_targets
from events.gate import GateReport, GateSettings
from tests.daemon.evaluation.simulation import pairs
from tests.daemon.evaluation.test_gate import CALM, alike, check


def test_patterns_of_the_same_generators_are_one_target() -> None:
    written = [("p", "cancel")] * 9 + [("p", "refund")] + [("q", "cancel")] * 5
    (target,) = find_targets(written)
    assert (target.name, target.kinds, target.patterns) == ("cancel", {"cancel": 1.0}, ("p", "q"))


def test_a_pattern_of_several_generators_keeps_their_shares() -> None:
    written = [("p", "cancel")] * 6 + [("p", "refund")] * 2 + [("q", "refund")] * 4
    mixture, alone = find_targets(written)
    assert mixture.kinds == {"cancel": 0.75, "refund": 0.25}
    assert mixture.count_tasks(10) == {"cancel": 8, "refund": 2}
    assert (alone.name, alone.patterns) == ("refund", ("q",))


def test_the_largest_targets_are_taken_and_at_least_one() -> None:
    kinds = [("p" + str(n), "k" + str(n)) for n in range(12)]
    assert [target.name for target in find_targets(kinds)] == ["k0"], "none has a tenth"
    sizes = {0: 40, 1: 30, 2: 20, 3: 9, 4: 1}
    written = [kinds[n] for n, size in sizes.items() for _ in range(size)]
    assert [target.name for target in find_targets(written)] == ["k0", "k1", "k2"]
    assert len(find_targets(kinds[:7] * 3)) == MOST
    assert LEAST * 7 < 1
    assert find_targets([]) == ()


def test_the_order_of_the_tasks_changes_no_target() -> None:
    written = [(f"p{n % 3}", f"k{n % 5}") for n in range(40)]
    mixed = Random("order").sample(written, len(written))
    assert find_targets(mixed) == find_targets(written)


def planned(*kinds: str, tasks: int = 60) -> list[PlannedTarget]:
    return [PlannedTarget.of_count(kind, tasks) for kind in kinds]


def judge(targets: Sequence[PlannedTarget], run: Sequence[Pair]) -> GateReport:
    return decide(Evaluation(targets, run, CALM, CALM), GateSettings())


def test_a_candidate_passes_on_what_it_lifts_if_it_harms_nothing() -> None:
    run = alike(60, "a", 0.25, 0.75) + alike(80, "b", 1, 1) + alike(60, "c", 0, 0.75)
    report = judge(planned("a", "b", "c"), run)
    assert report.decision == "PROMOTE"
    assert {target.name: target.verdict for target in report.targets} == {
        "a": "PASS", "b": "FAIL", "c": "PASS",
    }  # fmt: skip
    assert report.p_value == min(target.p_value or 0 for target in report.targets)
    assert check(report, "slice b").verdict == "PASS", "what is not lifted is held to its margin"
    assert not any(one.name in ("slice a", "slice c") for one in report.checks)


def test_a_target_that_is_harmed_stops_a_candidate_that_lifts_another() -> None:
    run = alike(60, "a", 0.25, 0.75) + alike(80, "b", 1, 0.75)
    report = judge(planned("a", "b"), run)
    assert report.decision == "REJECT"
    assert check(report, "target").verdict == "PASS"
    assert check(report, "slice b").verdict == "FAIL"


def test_where_none_is_lifted_the_candidate_is_rejected_and_the_power_is_said() -> None:
    pilot = {"a": [[True, False, True, False]] * 24, "b": [[True] * 4] * 24}
    targets = (Target.of_kind("a"), Target.of_kind("b"))
    sizes = sizes_of(pilot, targets, Trial(), GateSettings())
    single = sizes_of(pilot, targets[:1], Trial(), GateSettings())
    assert sizes.tasks["a"] > single.tasks["a"], "each target is planned at half the level"
    run = [
        pair
        for kind in pilot
        for pair in alike(sizes.tasks[kind], kind, 0.5, 0.5)
    ]  # fmt: skip
    report = judge(sizes.targets, run)
    assert report.decision == "REJECT"
    plans = {target.name: target.plan for target in sizes.targets}
    for target in report.targets:
        plan = plans[target.name]
        assert plan is not None
        assert (target.power, target.tasks) == (plan.power, plan.planned)
    assert report.plan in plans.values()


def test_several_p_values_share_the_level() -> None:
    """Seven tasks gained and two lost: p = 0.09 of each, and of 8 and 1 p = 0.02."""
    run = [
        *alike(8, "a", 0, 1), *(Pair("a-", "a", (True,), (False,)),),
        *alike(8, "b", 0, 1), *(Pair("b-", "b", (True,), (False,)),),
    ]  # fmt: skip
    alone = judge(planned("a", tasks=9), [pair for pair in run if pair.slice == "a"])
    (single,) = alone.targets
    assert (single.verdict, single.level) == ("PASS", 0.05)
    assert single.p_value == pytest.approx(10 / 512)
    both = judge(planned("a", "b", tasks=9), run)
    assert {target.level for target in both.targets} == {0.025, 0.05}
    assert all(target.verdict == "PASS" for target in both.targets)
    three = judge(planned("a", "b", "c", tasks=9), [*run, *alike(9, "c", 0.5, 0.5)])
    assert not any(target.verdict == "PASS" for target in three.targets), "0.05 / 3 < p"


def test_targets_that_share_a_kind_share_its_first_tasks() -> None:
    mixture = PlannedTarget(name="half", kinds={"a": 0.5, "b": 0.5}, planned=8)
    run = alike(10, "a", 0, 1) + alike(10, "b", 0, 0.5)
    assert list_differences(mixture, run) == [1.0] * 4 + [0.5] * 4
    pilot = {kind: [[True, False]] * 24 for kind in ("a", "b")}
    targets = (Target(name="half", kinds={"a": 0.5, "b": 0.5}), Target.of_kind("a"))
    sizes = sizes_of(pilot, targets, Trial(trials=2), GateSettings())
    alone = sizes_of(pilot, targets[1:], Trial(trials=2), GateSettings())
    counts = [target.task_counts.get("a", 0) for target in sizes.targets]
    assert sizes.tasks["a"] >= max(counts)
    assert sizes.tasks["a"] < sum(counts) + alone.tasks["b"], "no task is played for each target"


def test_a_test_by_steps_refuses_several_targets() -> None:
    run = alike(60, "a", 0, 1) + alike(60, "b", 0, 1)
    evaluation = Evaluation(planned("a", "b"), run, CALM, CALM)
    with pytest.raises(ValueError, match="e_process, which tests one target, and there are 2"):
        decide(evaluation, GateSettings(test="e_process"))


def test_one_target_costs_what_it_did_and_is_no_slice() -> None:
    pilot = {"a": [[True, False]] * 24, "b": [[True, True]] * 24}
    trial = Trial(trials=2)
    sizes = sizes_of(pilot, (Target.of_kind("a"),), trial, GateSettings())
    (target,) = sizes.targets
    assert sizes.tasks["a"] == target.planned
    assert "a" not in looks_of(sizes, trial).of_slice
    held = sizes.model_copy(update={"held": ("a",)})
    assert looks_of(held, trial).of("a") >= 1
    report = judge(sizes.targets, alike(target.planned, "a", 0, 1) + alike(80, "b", 1, 0.98))
    assert extend_sizes(sizes, report, trial) is None or report.decision == "EXTEND"


def test_without_a_gain_targets_that_share_tasks_are_lifted_as_rarely_as_alpha_says() -> None:
    """Every task belongs to two of three targets."""
    chance, count = Random(1), 300
    kinds = ("0", "1", "2")
    targets = [
        PlannedTarget(name=f"mixture {own}", kinds={own: 0.5, other: 0.5}, planned=40)
        for own, other in zip(kinds, (*kinds[1:], kinds[0]), strict=True)
    ]
    lifted = 0
    for _ in range(count):
        drawn = [
            Pair(f"{kind} {pair.task}", kind, pair.incumbent, pair.candidate)
            for kind in kinds
            for pair in pairs(chance, 40, 4, gain=0.0)
        ]
        values = {target.name: list_differences(target, drawn) for target in targets}
        results = judge_targets(targets, values, "sign_flip", 0.05)
        lifted += any(
            result.verdict == "PASS" and mean(values[name]) >= GateSettings().min_gain
            for name, (result, _) in results.items()
        )
    assert lifted <= count * 0.05 + 3 * (count * 0.05 * 0.95) ** 0.5


def test_a_report_of_an_earlier_version_is_readable() -> None:
    old = {
        "decision": "REJECT", "test": "sign_flip", "alpha": 0.05, "p_value": 0.5, "e_value": None,
        "tasks": 64, "detectable": 0.1, "plan": None,
        "checks": [{"name": "target", "verdict": "FAIL", "value": 0, "limit": 0.02, "low": -0.1,
                    "tasks": 64, "level": None, "p_value": None, "incumbent": None,
                    "candidate": None}],
    }  # fmt: skip
    report = GateReport.model_validate(old)
    assert (report.targets, report.checks[0].against) == ((), None)
