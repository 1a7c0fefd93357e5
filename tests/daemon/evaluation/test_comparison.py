"""An adapter beside the incumbent, on a real engine: the same tasks and seeds, one verdict."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads import serving
from daemon.core.decision_log import DecisionRefusal
from daemon.evaluation.comparison import (
    Comparison,
    ComparisonResult,
    NoTarget,
    Questions,
    judge,
    play,
)
from daemon.methods.skills.panels import Composition, compose
from daemon.serving.staging import StageRefusal
from envs.environment import Environment
from envs.evaluation import Attempt
from envs.shop.environment import Shop
from events.codec import decode
from events.gate import GateSettings
from events.rollouts import RolloutEnded
from events.serving import AdapterEvaluated, GateDecided
from ops.random_adapters import Adapters
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home
from tests.envs.faulty_shop import FaultyShop

TARGET: Final = next(iter(Shop.capabilities))
FEW: Final = Questions(tasks=4, others=3, trials=1, target=TARGET, max_tokens=64)


def ignored(_: list[Attempt]) -> None:
    """Nobody watches."""


def compared(
    home: Home,
    name: str,
    questions: Questions = FEW,
    told: Callable[[list[Attempt]], None] = ignored,
) -> tuple[Comparison, ComparisonResult]:
    comparison = played(home, name, questions, told)
    return comparison, judge(home.app, comparison, GateSettings(), ADA)


def played(
    home: Home,
    name: str,
    questions: Questions,
    told: Callable[[list[Attempt]], None],
    environment: Environment | None = None,
) -> Comparison:
    environment = environment or Shop()
    comparison, means = home.publisher.compare(name, environment, questions, ADA, 8)
    asyncio.run(play(home.app, environment, comparison, means, told))
    return comparison


def rollouts(home: Home) -> list[RolloutEnded]:
    spool = home.app.spool
    return [
        event.data
        for partition in range(len(spool.end("rollouts")))
        for event in (decode(record) for record in spool.read("rollouts", partition, 0))
        if isinstance(event.data, RolloutEnded)
    ]


def of_type(home: Home, kind: type[Any]) -> list[Any]:
    return [event.data for event in home.decided() if isinstance(event.data, kind)]


def test_both_play_the_same_and_the_gate_decides(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])
    comparison, judged = compared(home, name)
    found = rollouts(home)
    plays = {
        policy: {(r.task.id, r.seed) for r in found if r.task and r.policy == policy}
        for policy in (name, "reference")
    }
    assert plays[name] == plays["reference"]
    assert len(plays[name]) == len(found) // 2 == 7
    assert {r.purpose for r in found} == {"evaluate"}
    kinds = [r.task.capability for r in found if r.task and r.policy == name]
    assert kinds.count(TARGET) == 4
    (evaluated,) = of_type(home, AdapterEvaluated)
    assert (evaluated.adapter, evaluated.incumbent, evaluated.tasks) == (name, None, 7)
    assert evaluated.pass_hat_1 == judged.rates
    (decided,) = of_type(home, GateDecided)
    assert decided.report == judged.report
    row = home.row(name)
    assert (row.gate, row.incumbent) == (judged.report, None)
    assert row.state == ("rejected" if judged.report.decision == "REJECT" else "evaluated")
    assert sorted(comparison.tokens) == sorted(r.rollout for r in found)
    assert min(comparison.tokens.values()) > 0


@pytest.mark.long
def test_users_of_an_environment_that_err_spoil_no_comparison(
    make_home: MakeHome, adapters: Adapters
) -> None:
    class Faulty(FaultyShop):
        rate = 0.4
        users_err = True

    home = make_home(1)
    name = home.push(adapters["v1"])
    questions = Questions(tasks=6, others=0, trials=4, target=TARGET, max_tokens=64)
    comparison = played(home, name, questions, ignored, Faulty())
    judged = judge(home.app, comparison, GateSettings(), ADA)
    faults = Counter(r.policy for r in rollouts(home) if r.termination == "user_error")
    assert faults.total() > 6
    assert judged.user_faults is not None
    assert judged.user_faults.startswith(
        f"the users that shop itself played erred in {faults['reference']} of 24 rollouts of "
        f"reference and in {faults[name]} of 24 of the candidate"
    )
    (evaluated,) = of_type(home, AdapterEvaluated)
    assert evaluated.tasks <= 6


def test_the_tasks_are_fresh_each_time(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])
    several = (FEW, FEW, Questions(4, 3, 1, TARGET, seed=7))
    found = [home.publisher.compare(name, Shop(), one, ADA, 8)[0] for one in several]
    draws = [{line.id for line in one.candidate.lines} for one in found]
    assert draws[0] == draws[1], "until something was measured"
    assert not draws[0] & draws[2]


class Killed(Exception):
    """The process ends here."""


def test_a_comparison_that_was_cut_short_goes_on_where_it_was(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])

    def die(_: list[Attempt]) -> None:
        raise Killed

    with pytest.raises(Killed):
        played(home, name, FEW, die)
    before = {r.rollout for r in rollouts(home)}
    assert 0 < len(before) < 14
    assert of_type(home, AdapterEvaluated) == []
    comparison, _ = compared(home, name)
    assert len(rollouts(home)) == 14
    assert before < {r.rollout for r in rollouts(home)}
    judge(home.app, comparison, GateSettings(), ADA)
    assert len(of_type(home, AdapterEvaluated)) == len(of_type(home, GateDecided)) == 1
    with home.app.reading() as connection:
        assert len(serving.evaluation_lines(connection, name)) == 1


def test_one_that_was_retired_meanwhile_is_judged_when_it_is_staged_again(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])
    comparison = played(home, name, FEW, ignored)
    home.publisher.retire(name, ADA)
    with pytest.raises(DecisionRefusal, match="is draining: no AdapterEvaluated from there"):
        judge(home.app, comparison, GateSettings(), ADA)
    home.tick()
    assert home.state(name) == "unloaded"
    _, judged = compared(home, name)
    assert home.row(name).gate == judged.report
    assert len(rollouts(home)) == 14, "what was played counts"


def test_whoever_answers_now_is_the_one_to_beat(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1)
    first = home.serve(adapters["v1"])
    second = home.push(adapters["v3"])
    comparison, _ = compared(home, second)
    assert comparison.incumbent == first
    assert {r.policy for r in rollouts(home)} == {first, second}
    assert home.shares() == {first: 1.0}


def test_what_an_adapter_is_for_must_be_known(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"], capability="dance")
    with pytest.raises(NoTarget, match=r"is for 'dance', and shop has .*; name .*--target"):
        compared(home, name, Questions(1, 1, 1))


def test_a_rejected_adapter_is_not_measured_again(
    make_home: MakeHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])
    home.publisher.retire(name, ADA)
    with pytest.raises(StageRefusal, match="is rejected, and cannot be staged"):
        compared(home, name)


def test_a_panel_plays_with_its_router_and_each_rollout_names_the_member(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """The base routes; where its two orders of the labels differ, the base answers."""
    home = make_home(1)
    first, second = home.push(adapters["v1"]), home.push(adapters["v2"])
    descriptions = {"first": "cancels an order", "second": "changes an address"}
    composition = Composition({"first": first, "second": second}, descriptions=descriptions)
    panel = compose(home.app, home.fleet, composition, ADA).adapter
    with pytest.raises(NoTarget):
        compared(home, panel, Questions(tasks=2, others=0, trials=1))
    comparison, judged = compared(home, panel)
    assert [check.tasks for check in judged.report.checks if check.name == "target"] == [4]
    assert home.state(panel) in ("evaluated", "gated", "rejected")
    ours = [event for event in rollouts(home) if event.policy == panel]
    assert len(ours) == 7
    for event in ours:
        member = event.member
        assert member is not None
        assert member.adapter == {"first": first, "second": second, None: None}[member.skill]
        assert (member.doubt is None) == (member.skill is not None)
    assert all(event.member is None for event in rollouts(home) if event.policy != panel)
    assert comparison.incumbent is None
