"""How many tasks the gate needs: by the incumbent's own spread, fixed beforehand."""

from random import Random

import pytest

from daemon.config.settings import Trial
from daemon.evaluation.gate.levels import bound, level_of
from daemon.evaluation.gate.power import detectable
from daemon.evaluation.sample_size import BETWEEN, Sizes, extend_sizes, looks_of, sizes_of, within
from daemon.evaluation.targets import PlannedTarget, Target
from events.gate import Check, GatePlan, GateReport, GateSettings

GATE = GateSettings()
TARGET = Target.of_kind("target")


def planned(plan: GatePlan) -> PlannedTarget:
    return PlannedTarget(**TARGET.model_dump(), planned=plan.planned, plan=plan)


def plan_of(sizes: Sizes) -> GatePlan:
    """Of the one target."""
    ((plan,),) = ([target.plan for target in sizes.targets],)
    assert plan is not None
    return plan


def pilot(chance: Random, rates: dict[str, float], tasks: int = 24) -> dict[str, list[list[bool]]]:
    """What players of these pass rates do."""
    return {
        kind: [[chance.random() < rate for _ in range(4)] for _ in range(tasks)]
        for kind, rate in rates.items()
    }


def test_the_spread_of_a_kind_is_that_of_a_difference() -> None:
    assert within([[True] * 4, [False] * 4]) == 0
    sides = pilot(Random("spread"), {"even": 0.5}, tasks=4000)["even"]
    assert within(sides) == pytest.approx(2 * 0.5 * 0.5, abs=0.02)


def test_a_kind_that_is_even_needs_more_tasks_than_one_that_is_sure() -> None:
    trial = Trial(least_tasks=10, most_tasks=1_000)
    found = pilot(Random("sizes"), {"target": 0.5, "sure": 1.0, "even": 0.5})
    sizes = sizes_of(found, (TARGET,), trial, GATE)
    assert sizes.tasks["sure"] < sizes.tasks["target"] < sizes.tasks["even"]
    assert plan_of(sizes).planned == sizes.tasks["target"]
    assert 0.8 <= plan_of(sizes).power < 0.81
    assert f"found with a chance of {plan_of(sizes).power:.0%}" in sizes.words()


def test_a_kind_that_decides_nothing_is_played_half_as_often() -> None:
    trial = Trial(least_tasks=10, most_tasks=1_000)
    played = pilot(Random("sizes"), {"target": 0.5, "even": 0.5, "other": 0.5})
    whole = sizes_of(played, (TARGET,), trial, GATE)
    sizes = sizes_of(played, (TARGET,), trial, GATE, siblings=["even"])
    assert sizes.tasks == {**whole.tasks, "even": (whole.tasks["even"] + 1) // 2}


def test_what_is_planned_is_what_the_gate_can_see() -> None:
    chance = Random("seen")
    found = pilot(chance, {"target": 0.5}, tasks=400)
    trial = Trial(gain=0.1, trials=4, least_tasks=1, most_tasks=10_000)
    sizes = sizes_of(found, (TARGET,), trial, GATE)
    spread = (BETWEEN + within(found["target"]) / 4) ** 0.5
    differences = [chance.gauss(0.1, spread) for _ in range(plan_of(sizes).planned)]
    seen = detectable(differences, GATE.alpha)
    assert seen == pytest.approx(0.1, abs=0.015)


def test_too_few_tasks_are_said_to_have_too_little_power() -> None:
    found = pilot(Random("few"), {"target": 0.5})
    sizes = sizes_of(found, (TARGET,), Trial(least_tasks=1, most_tasks=20), GATE)
    assert plan_of(sizes).planned == 20
    assert plan_of(sizes).power < 0.5


def report(**verdicts: str) -> GateReport:
    checks = [
        Check(name=name.replace("_", " "), verdict=verdict, value=0, limit=0, tasks=1)
        for name, verdict in verdicts.items()
    ]
    return GateReport(
        decision="EXTEND", test="sign_flip", alpha=0.05, tasks=1, checks=tuple(checks)
    )


def test_only_what_is_open_is_played_again_until_there_is_no_more() -> None:
    plan = GatePlan(gain=0.1, trials=4, between=0, within=0, planned=30, power=1)
    sizes = Sizes(tasks={"target": 30, "one": 20, "other": 20}, targets=(planned(plan),))
    trial = Trial(most_tasks=70)
    more = extend_sizes(sizes, report(slice_one="EXTEND", slice_other="PASS"), trial)
    assert more is not None
    assert more.tasks == {"target": 30, "one": 40, "other": 20}
    more = extend_sizes(more, report(overall="EXTEND"), trial)
    assert more is not None
    assert more.tasks == {"target": 30, "one": 70, "other": 70}
    assert more.targets == sizes.targets
    last = extend_sizes(more, report(slice_one="EXTEND"), trial)
    assert last is None


def test_the_gate_looks_no_more_often_than_its_levels_allow() -> None:
    plan = GatePlan(gain=0.1, trials=4, between=0, within=0, planned=30, power=1)
    trial = Trial(most_tasks=512)
    sizes: Sizes | None = Sizes(
        tasks={"target": 30, "one": 64, "other": 300}, targets=(planned(plan),)
    )
    assert sizes is not None
    most = looks_of(sizes, trial)
    assert (most.most, most.of_slice) == (4, {"one": 4, "other": 2})
    seen, chance = [sizes.tasks["one"]], Random("open")
    while True:
        # Whatever is open at a look, first the one and then the other.
        names = chance.choice(("slice_one", "slice_other", "overall"))
        sizes = extend_sizes(sizes, report(**{names: "EXTEND"}), trial)
        if sizes is None:
            break
        assert looks_of(sizes, trial) == most
        seen.append(sizes.tasks["one"])
    assert len(seen) <= most.most


def test_a_kind_in_which_both_always_pass_is_shown_at_its_first_look() -> None:
    sure = pilot(Random("sure"), {"target": 0.5, "sure": 1.0})
    for most in (64, 128, 256, 512, 4096):
        trial = Trial(trials=2, least_tasks=1, most_tasks=most)
        sizes = sizes_of(sure, (TARGET,), trial, GATE)
        looks = looks_of(sizes, trial)
        count = sizes.tasks["sure"]
        assert bound([0.0] * count, level_of(looks.of("sure"))) > -GATE.slice_margin
