"""From skills and tasks to the spec of a router's job."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from daemon.config.settings import Agent, Training
from daemon.cycle.job_spec import NotTrainable, seed_of
from daemon.methods.skills.router_job import build_router_spec
from daemon.solver.kinds import check_supported
from daemon.solver.spec import NotSupported
from events.jobs import JobSpec, RouterOption, WarmStart

AGENT = Agent(alias="agent", environment="shop", checkpoint=Path("/models/base"))
OPTIONS = (
    RouterOption(skill="returns", label="A", token=7, description="returns goods"),
    RouterOption(label="B", token=8, description="anything else"),
)
TASKS: Mapping[str | None, Sequence[str]] = {
    "returns": ("shop/return/1", "shop/return/2", "shop/both/1"),
    None: ("shop/cancel/1", "shop/cancel/2", "shop/cancel/2", "shop/both/1"),
}


def build(tasks: Mapping[str | None, Sequence[str]] = TASKS, **training: float) -> JobSpec:
    return build_router_spec(
        Training(**training), AGENT, job="j", base="reference", options=OPTIONS, tasks=tasks,
        parameters=10**9,
    )  # fmt: skip


def test_a_router_is_taught_by_tasks_of_one_skill_each() -> None:
    spec = build()
    assert spec == build()
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    check_supported(spec)
    assert spec.teaches == "router"
    assert spec.router is not None
    assert spec.router.options == OPTIONS
    assert {pool.skill: pool.tasks for pool in spec.pools} == {
        "returns": ("shop/return/1", "shop/return/2"),
        None: ("shop/cancel/1", "shop/cancel/2"),
    }
    assert spec.seed == seed_of("j")
    assert spec.optimizer.lr == pytest.approx(2e-4)
    assert build(warm_start_lr=0.001).optimizer.lr == pytest.approx(0.002)


def test_an_option_needs_a_task_to_learn_from_and_one_that_is_held_out() -> None:
    with pytest.raises(NotTrainable, match="has 1 tasks of returns, and needs 2"):
        build({**TASKS, "returns": ("shop/return/1", "shop/both/1")})
    for others in ((), ("shop/cancel/1", "shop/both/1")):
        taught = build({**TASKS, None: others})
        assert [pool.skill for pool in taught.pools] == ["returns"], "all traffic may need a skill"
        check_supported(taught)


def test_what_a_router_does_not_read_is_refused() -> None:
    spec = build()
    shown = [pool.model_copy(update={"references": ("shop/x/1",)}) for pool in spec.pools]
    for changes in ({"warm_start": WarmStart()}, {"pools": tuple(shown)}, {"checkpoints": (64,)}):
        with pytest.raises(NotSupported, match="leave it out"):
            check_supported(spec.model_copy(update=changes))
    with pytest.raises(NotSupported, match=r"no pool of job j has tasks of option A \(returns\)"):
        check_supported(spec.model_copy(update={"pools": spec.pools[1:]}))
    with pytest.raises(NotSupported, match="teaches the user"):
        check_supported(spec.model_copy(update={"teaches": "user", "router": None}))
