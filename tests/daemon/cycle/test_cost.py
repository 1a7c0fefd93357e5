"""What a cycle cost: stages by the times of its events, rollouts by purpose, points by its gate."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from consumers.reads import learning
from daemon.config.settings import Jobs, Ray, Settings
from daemon.cycle.cost import STAGES, CycleCost, count_gpus, measure_gain, read_cost
from daemon.cycle.estimate import estimate, read_history
from events.gate import Check, GateReport
from events.learning import Decision
from events.rollouts import Purpose
from events.serving import GateDecided
from tests.consumers.cycling import (
    Leading,
    cycle_id,
    diagnosed,
    directed,
    job_over,
    over,
    proposed,
    requested,
    started,
)
from tests.consumers.deciding import decided, evaluated, produced, routed, staged
from tests.consumers.folding import at, ended, fold

SECOND = pytest.approx(1 / 60)


def report(target: float, overall: float = 0.01, *more: Check) -> GateReport:
    checks = (
        Check(name="target", verdict="PASS", value=target, limit=0.02, tasks=100),
        Check(name="overall", verdict="PASS", value=overall, limit=-0.01, tasks=300),
    )
    return GateReport(
        decision="PROMOTE", test="sign_flip", alpha=0.05, tasks=100, checks=checks + more
    )


def gated(name: str, given: GateReport) -> GateDecided:
    return decided(name, given.decision).model_copy(update={"report": given})


def play(leading: Leading, purpose: Purpose, count: int) -> None:
    """Rollouts of the agent at this moment."""
    now = at(leading.second)
    names = [f"{purpose}-{leading.second}-{number}" for number in range(count)]
    leading.log.append([ended(name, now, purpose=purpose) for name in names])
    fold(leading.log, leading.engine)


def begin(leading: Leading, number: int = 1) -> None:
    """A cycle up to its job, one second a decision; 8 rollouts probe what it wrote."""
    leading.all(started(number), diagnosed({"rollouts": {}}, number), directed(number), epoch=1)
    play(leading, "probe", 8)
    leading.all(proposed(f"shop/{number}", number), requested(number), epoch=1)


def finish(leading: Leading, given: GateReport, number: int = 1, outcome: Any = "promoted") -> None:
    """Its job, its adapter, a gate, a canary, and the end."""
    name = f"better-{number}"
    made = produced(name).model_copy(update={"job": job_over(number).job})
    leading.all(job_over(number, seconds=32.0), made, staged(name), epoch=1)
    play(leading, "evaluate", 20)
    leading.all(evaluated(name), gated(name, given), epoch=1)
    if outcome == "promoted":
        canary: list[Decision] = [
            routed("canary", {name: 0.5, None: 0.5}),
            routed("promoted", {name: 1.0}),
        ]
        leading.all(*canary, epoch=1)
    leading.all(over(number, outcome), epoch=1)


@pytest.fixture
def leading(engine: Engine) -> Leading:
    opened = Leading(engine)
    opened.claim(1)
    return opened


def cost_of(leading: Leading, number: int = 1, **settings: Any) -> CycleCost | None:
    with leading.tables() as connection:
        row = learning.find_cycle(connection, cycle_id(number))
        return read_cost(connection, Settings(home=Path("/nowhere"), **settings), row)


def test_every_stage_lasts_from_the_event_before_it_to_its_own(leading: Leading) -> None:
    begin(leading)
    assert cost_of(leading) is None, "an open cycle has cost nothing that is final"
    finish(leading, report(0.04))
    play(leading, "evaluate", 5)
    cost = cost_of(leading)
    assert cost is not None
    assert cost.minutes == {
        "diagnose": SECOND, "direct": SECOND, "propose": pytest.approx(2 / 60), "train": SECOND,
        "stage": pytest.approx(2 / 60), "evaluate": pytest.approx(2 / 60),
        "canary": pytest.approx(3 / 60),
    }  # fmt: skip
    assert sum(spent or 0 for spent in cost.minutes.values()) == pytest.approx(cost.total_minutes)
    assert (cost.rollouts.probe, cost.rollouts.training, cost.rollouts.evaluation) == (8, 64, 20)
    assert cost.rollouts.total == 92
    assert cost.job_hours == pytest.approx(32 / 3600)


def test_hours_per_point_leave_out_the_canary(leading: Leading) -> None:
    begin(leading)
    finish(leading, report(0.04, overall=-0.005))
    cost = cost_of(leading)
    assert cost is not None
    assert cost.hours == pytest.approx((cost.total_minutes - 3 / 60) / 60)
    assert cost.gain == {"target": pytest.approx(4.0), "overall": pytest.approx(-0.5)}
    assert cost.hours_per_point == {"target": pytest.approx(cost.hours / 4.0), "overall": None}
    assert cost.without_gain is None


@pytest.mark.parametrize(
    ("outcome", "gain", "why"),
    [
        ("rejected", 0.04, "it ended rejected, so nothing that answers was gained"),
        ("promoted", -0.01, "the gate measured no gain"),
    ],
)
def test_where_nothing_was_gained_there_is_no_price_and_the_reason_is_said(
    leading: Leading, outcome: str, gain: float, why: str
) -> None:
    begin(leading)
    finish(leading, report(gain, overall=-0.01), outcome=outcome)
    cost = cost_of(leading)
    assert cost is not None
    assert cost.hours_per_point == {"target": None, "overall": None}
    assert cost.without_gain == why
    assert cost.gain["target"] == pytest.approx(100 * gain)


def test_a_stage_that_was_not_reached_took_no_time(leading: Leading) -> None:
    begin(leading)
    leading.all(job_over(outcome="failed"), over(outcome="failed"), epoch=1)
    cost = cost_of(leading)
    assert cost is not None
    reached = [stage for stage in STAGES if cost.minutes[stage] is not None]
    assert reached == ["diagnose", "direct", "propose", "train"]
    assert cost.minutes["train"] == pytest.approx(2 / 60), "until the cycle ended"
    assert cost.gain == {"target": None, "overall": None}


def test_several_targets_count_by_their_tasks() -> None:
    more = Check(name="target b", verdict="PASS", value=0.10, limit=0.02, tasks=50)
    assert measure_gain(report(0.04, 0.01, more))["target"] == pytest.approx(6.0)
    assert measure_gain(None) == {"target": None, "overall": None}


def test_gpu_hours_need_a_gpu_that_settings_or_job_name(leading: Leading) -> None:
    begin(leading)
    finish(leading, report(0.04))
    ray = Jobs(runner="ray", ray=Ray(gpus=4))
    plain, on_ray = cost_of(leading), cost_of(leading, jobs=ray)
    assert plain is not None
    assert on_ray is not None
    assert plain.gpu_hours is None
    assert on_ray.gpu_hours == pytest.approx(4 * 32 / 3600)
    settings = Settings(home=Path("/nowhere"))
    assert (count_gpus(settings, "cuda:1"), count_gpus(settings, "cpu")) == (1.0, None)
    without = settings.model_copy(update={"jobs": Jobs(runner="ray")})
    assert count_gpus(without, "cuda") is None


def test_estimates_are_medians_of_the_agents_own_cycles(leading: Leading) -> None:
    begin(leading)
    finish(leading, report(0.04))
    begin(leading, 2)
    finish(leading, report(0.01), 2, "rejected")
    spec = requested(3).spec
    with leading.tables() as connection:
        settings = Settings(home=Path("/nowhere"))
        own = read_history(connection, settings, "agent", "base")
        others = read_history(connection, settings, "clerk", "base")
        elsewhere = read_history(connection, settings, "agent", "other")
    found = estimate(own, 3, [spec], limit=1000.0, gpus=2.0)
    assert (found.basis, found.cycles, found.jobs) == ("agent", 2, 2)
    assert found.writing_minutes == pytest.approx(4 / 60)
    assert found.training_minutes == pytest.approx(spec.sampler.rollouts / 2.0 / 60)
    assert found.gpu_hours == pytest.approx(2 * spec.sampler.rollouts / 2.0 / 3600)
    assert found.rollouts.total == 3 * 8 + spec.sampler.rollouts + 20
    assert found.minutes is not None
    assert found.unknown == ()
    assert estimate(own, 3, [spec], limit=1.0, gpus=None).training_minutes == 1.0
    assert (others.basis, elsewhere.basis) == ("home", None)
    assert estimate(elsewhere, 0, [spec], 10.0, None).minutes is None


def test_a_cycle_is_found_by_its_number_where_one_agent_has_it(leading: Leading) -> None:
    leading.all(started(), over(), started(2), over(2), epoch=1)
    leading.all(started(1, alias="clerk"), epoch=1)
    with leading.tables() as connection:
        assert learning.find_cycle(connection, "2").cycle == cycle_id(2)
        with pytest.raises(learning.UnknownId, match="several cycles have the number 1"):
            learning.find_cycle(connection, "1")
        with pytest.raises(learning.UnknownId, match="there is no cycle '999999'"):
            learning.find_cycle(connection, "999999")
