"""Margins do not add up: each kind is held against the best policy that ever served it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from consumers.reads.serving import AdapterRow
from daemon.evaluation.best_policies import find_best, list_measured_kinds
from daemon.evaluation.gate.decision import decide
from daemon.evaluation.gate.levels import BEST_LEVEL, bound
from daemon.evaluation.gate.measurements import Evaluation, Gap, Reference
from daemon.evaluation.targets import PlannedTarget
from events.gate import Check, GateReport, GateSettings, TargetReport
from events.lifecycle import State
from tests.daemon.evaluation.chains import count_losses
from tests.daemon.evaluation.test_gate import CALM, alike, check
from tests.daemon.serving.test_desired_state import adapter

ERROR = 0.01
Z = 1.6448536269514722


def measured(value: float, name: str = "slice kind", against: str | None = None) -> Check:
    """A difference with a standard error of a point."""
    return Check(
        name=name, verdict="PASS", value=value, limit=-0.05, low=value - Z * ERROR, level=0.05,
        tasks=400, against=against,
    )  # fmt: skip


def promoted(name: str, incumbent: str | None, *checks: Check, **fields: object) -> AdapterRow:
    report = GateReport(decision="PROMOTE", test="sign_flip", alpha=0.05, tasks=400, checks=checks)
    row = adapter(name, State.PROMOTED, incumbent=incumbent, gate=report, capability="other")
    return replace(row, **fields)  # type: ignore[arg-type]


def best_of(rows: Sequence[AdapterRow], incumbent: str | None) -> tuple[str | None, float] | None:
    found = find_best(rows, incumbent, ("kind",)).get("kind")
    if found is None:
        return None
    return None if found.adapter is None else found.adapter.adapter, round(found.gap.value, 6)


def test_promotions_that_cost_a_kind_leave_the_base_its_best() -> None:
    rows = [promoted("a", None, measured(-0.02)), promoted("b", "a", measured(-0.03))]
    assert best_of(rows[:1], "a") == (None, -0.02)
    assert best_of(rows, "b") == (None, -0.05)
    gap = find_best(rows, "b", ("kind",))["kind"].gap
    assert gap.variance == pytest.approx(2 * ERROR**2), "errors add up"


def test_who_is_shown_to_be_better_is_the_best_from_then_on() -> None:
    rows = [promoted("a", None, measured(0.04)), promoted("b", "a", measured(-0.02))]
    assert best_of(rows[:1], "a") is None, "the incumbent itself"
    assert best_of(rows, "b") == ("a", -0.02)
    assert best_of(rows, None) == ("a", -0.04), "after a rollback to the base"


def test_reports_by_other_rules_of_a_kind_do_not_say_how_policies_compare() -> None:
    rows = [promoted("a", None, measured(-0.02)), promoted("b", "a", measured(-0.03))]
    newer = [
        replace(row, gate=row.gate and row.gate.model_copy(update={"rules": {"kind": "2"}}))
        for row in rows
    ]
    mixed = [rows[0], newer[1]]
    assert find_best(rows, "b", ("kind",), {"other": "2"})["kind"].gap.value == -0.05
    assert find_best(newer, "b", ("kind",), {"kind": "2"})["kind"].gap.value == -0.05
    assert find_best(mixed, "b", ("kind",), {"kind": "2"})["kind"].gap.value == -0.03
    assert find_best(rows, "b", ("kind",), {"kind": "2"}) == {}
    assert find_best(mixed, "b", ("kind",), {"kind": "2"})["kind"].adapter == rows[0]


def test_a_gain_within_the_error_is_none() -> None:
    rows = [promoted("a", None, measured(0.015)), promoted("b", "a", measured(0.015))]
    assert best_of(rows[:1], "a") == (None, 0.015)
    assert best_of(rows, "b") is None, "both together are shown"


def test_what_was_measured_against_the_best_itself_is_not_chained() -> None:
    direct = measured(-0.01, "best kind", against="base")
    rows = [
        promoted("a", None, measured(-0.03)),
        promoted("b", "a", measured(0.005), direct),
    ]
    assert best_of(rows, "b") == (None, -0.01)


def test_a_lifted_target_says_how_its_kind_changed() -> None:
    lifted = TargetReport(
        name="kind", kinds={"kind": 1.0}, tasks=100, gain=0.2, low=0.1, p_value=0.001, level=0.05,
        verdict="PASS",
    )  # fmt: skip
    row = promoted("a", None, measured(0.0, "slice plain"))
    assert row.gate is not None
    row = replace(row, gate=row.gate.model_copy(update={"targets": (lifted,)}))
    assert best_of([row, promoted("b", "a", measured(-0.01))], "b") == ("a", -0.01)
    assert list_measured_kinds([row]) == ("plain", "kind", "other")
    old = promoted("c", None, measured(0.2, "target"), capability="kind")
    assert best_of([old, promoted("d", "c", measured(-0.01))], "d") == ("c", -0.01)


def test_what_the_reports_do_not_say_begins_anew() -> None:
    rows = [
        promoted("a", None, measured(-0.02)),
        promoted("hand", "a", gate=None),
        promoted("b", "hand", measured(-0.02)),
    ]
    assert best_of(rows, "b") == ("hand", -0.02)
    assert best_of(rows, "stranger") is None


TARGET = PlannedTarget.of_count("target", 60)
LIFTED = alike(60, "target", 0.25, 0.75)


def judge(reference: Reference, before: float = 0.75) -> GateReport:
    """A candidate like its incumbent at `plain`, beside what was best at it."""
    run = [*LIFTED, *alike(300, "plain", before, 0.75)]
    return decide(Evaluation([TARGET], run, CALM, CALM, references=[reference]), GateSettings())


def test_a_kind_below_its_best_policy_stops_a_candidate_that_is_no_worse_than_the_incumbent() -> (
    None
):
    gap = Gap(-0.04, 0.0)
    better = Reference("plain", "base", gap, alike(300, "plain", 1, 0.75))
    report = judge(better)
    assert report.decision == "REJECT"
    assert check(report, "slice plain").verdict == "PASS"
    found = check(report, "best plain")
    assert (found.verdict, found.against, found.chained) == ("FAIL", "base", False)
    assert found.value == pytest.approx(-0.25)
    equal = Reference("plain", "base", gap, alike(300, "plain", 0.75, 0.75))
    assert judge(equal).decision == "PROMOTE"


def test_without_the_files_of_the_best_the_variances_are_added() -> None:
    gap = Gap(-0.01, 0.008**2)
    report = judge(Reference("plain", "base", gap))
    found = check(report, "best plain")
    assert found.chained
    assert found.value == pytest.approx(-0.01)
    fresh = -bound([0.0] * 300, BEST_LEVEL)
    assert found.low is not None
    assert found.low < -0.01 - fresh, "wider than what was played today"
    assert found.low > -0.01 - fresh - 3 * 0.008
    assert judge(Reference("plain", "base", Gap(-0.2, 0.0))).decision == "REJECT"


def test_twenty_promotions_that_each_cost_a_kind_stay_within_one_margin() -> None:
    assert count_losses((-0.04, -0.01), 6, 1) <= 1
    assert count_losses((-0.04, -0.01), 3, 1, best=False) == 3
