"""From settings and tasks to a job's spec: the same request is the same spec."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from daemon.config.presets import preset
from daemon.config.settings import Agent, Training
from daemon.cycle.job_spec import NotTrainable, build_job_spec, name_capability, seed_of
from daemon.jobs.learning_rate import needs_size
from envs.registry import open_place
from events.jobs import AdapterUser, EndpointSource, JobSpec, TaskPool, VllmSource
from tests.envs.test_registry import write_environment

AGENT = Agent(alias="agent", environment="shop", checkpoint=Path("/models/base"))


def pool(name: str, kind: str, count: int, **changes: Any) -> TaskPool:
    return TaskPool(name=name, tasks=tuple(f"shop/{kind}/{n}" for n in range(count)), **changes)


POOLS = (
    pool("weak", "exchange", 40),
    pool("other", "refund", 30),
    pool("replay", "cancel", 90, replay=True),
)


def spec(training: Training | None = None, **changes: Any) -> JobSpec:
    given: dict[str, Any] = {
        "job": "j",
        "base": "reference",
        "pools": POOLS,
        "parameters": 3 * 10**6,
    }
    return build_job_spec(training or Training(), AGENT, **(given | changes))


def test_a_spec_is_a_function_of_what_it_is_made_from() -> None:
    assert spec() == spec()
    assert spec().seed == seed_of("j") != seed_of("k")
    assert spec(job="k").seed == seed_of("k")
    made = spec(parent=Path("/adapters/a"), benchmarks=Path("/benchmarks"))
    assert (made.parent, made.benchmarks) == ("/adapters/a", "/benchmarks")
    assert (made.checkpoint, made.environment, made.pools) == ("/models/base", "shop", POOLS)
    assert JobSpec.model_validate_json(made.model_dump_json()) == made


def test_a_job_by_the_published_recipe_has_the_numbers_of_its_release() -> None:
    made = spec(Training(algorithm="trace_paper", recipe="published"), parameters=None)
    assert made.algorithm == preset("trace_paper")
    assert (made.sampler.groups, made.sampler.size, made.optimizer.lr) == (4, 16, 1e-5)
    assert (made.lora.rank, made.lora.alpha) == (16, 16.0)
    assert made.lora.targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    with pytest.raises(ValueError, match="'dapo', of which none is known; name one of trace_paper"):
        Training(algorithm="dapo", recipe="published")


def test_a_job_finds_an_environment_that_only_the_settings_know(tmp_path: Path) -> None:
    file = write_environment(tmp_path / "mine.py", "mine")
    agent = AGENT.model_copy(update={"environment": "mine"})
    made = build_job_spec(
        Training(lr=1e-3), agent, job="j", base="reference", pools=POOLS, environments=[tmp_path]
    )
    # As the learner does, which has no settings.
    assert open_place(made.environment).name == "mine"
    assert made.environment == f"{file}:mine"


def test_an_adapter_is_called_after_what_it_is_mostly_trained_on() -> None:
    def kind(task: str) -> str:
        return task.split("/")[1]

    assert name_capability(POOLS, kind) == "exchange", "replay does not count"
    even = (pool("a", "refund", 3), pool("b", "exchange", 3))
    assert name_capability(even, kind) == "exchange"


def test_a_warm_start_shows_tasks_that_are_then_not_drawn() -> None:
    made = spec(Training(warm_start="auto", references=10))
    weak, other, replay = made.pools
    assert (len(weak.tasks), len(weak.references)) == (30, 10)
    assert set(weak.tasks) | set(weak.references) == set(POOLS[0].tasks)
    assert len(other.references) == 10
    assert (len(replay.tasks), len(replay.references)) == (70, 20), "as many as the targets"
    assert made.warm_start is not None
    assert made.warm_start.mode == "auto"


def test_a_small_pool_shows_half_of_its_tasks_and_one_of_a_single_task_none() -> None:
    pools = (*POOLS, pool("small", "return", 5), pool("single", "payment", 1))
    made = spec(Training(warm_start="always", references=30), pools=pools)
    counts = {one.name: (len(one.tasks), len(one.references)) for one in made.pools}
    assert counts == {
        "weak": (20, 20), "other": (15, 15), "replay": (53, 37), "small": (3, 2), "single": (1, 0),
    }  # fmt: skip
    assert made.warm_start is not None


def test_replay_shows_tasks_from_its_whole() -> None:
    """Tasks of the traffic come by name, and so kind by kind."""
    ids = tuple(f"shop/{kind}/{n}" for kind in ("address", "cancel", "return") for n in range(30))
    traffic = TaskPool(name="traffic", tasks=ids, replay=True)
    made = spec(Training(warm_start="always", references=15), pools=(POOLS[0], traffic))
    shown = made.pools[1].references
    assert Counter(task.split("/")[1] for task in shown) == {"address": 5, "cancel": 5, "return": 5}
    assert set(made.pools[1].tasks) == set(ids) - set(shown)


def test_pools_of_one_task_each_are_trained_without_a_warm_start() -> None:
    alone = pool("single", "payment", 1)
    made = spec(Training(warm_start="always"), pools=(alone, POOLS[2]))
    assert made.warm_start is None
    assert made.pools == (alone, POOLS[2]), "replay alone is nothing to start from"


@pytest.mark.parametrize(
    ("rollouts", "share", "most"),
    [
        (98, 0.5, 34),
        (128, 0.5, 64),
        (64, 0.5, 0),
        (256, 0.25, 64),
        (256, 0.75, 70),
        (128, 0.9, 64),
    ],
)
def test_references_take_their_share_of_the_budget_at_most_and_leave_a_batch(
    rollouts: int, share: float, most: int
) -> None:
    """The pools have 35 targets to show, half of each, and replay as many."""
    training = Training(warm_start="auto", references=100, references_most=share, rollouts=rollouts)
    made = spec(training)
    shown = [len(pool.references) for pool in made.pools]
    assert sum(shown) <= most
    assert sum(shown) >= most - 4, "and no less, but for what is rounded"
    assert (made.warm_start is None) == (most == 0)


def test_unset_rates_follow_from_the_size_of_the_base() -> None:
    made = spec(Training(warm_start="auto"))
    assert made.warm_start is not None
    sft = made.warm_start.sft
    assert (made.optimizer.lr, sft.optimizer.lr, sft.epochs) == (2e-3, 4e-3, 4)
    large = spec(Training(warm_start="auto"), parameters=4 * 10**9)
    assert large.warm_start is not None
    assert large.optimizer.lr == pytest.approx(1e-5)
    assert 2e-5 < large.warm_start.sft.optimizer.lr < 1e-4
    assert large.warm_start.sft.epochs == 2


def test_set_rates_are_taken_as_they_are_and_ask_for_no_size() -> None:
    training = Training(lr=3e-4, warm_start="auto", warm_start_lr=5e-4, warm_start_epochs=7)
    assert not needs_size(training)
    made = spec(training, parameters=None)
    assert made.warm_start is not None
    sft = made.warm_start.sft
    assert (made.optimizer.lr, sft.optimizer.lr, sft.epochs) == (3e-4, 5e-4, 7)
    assert needs_size(Training(lr=3e-4, warm_start="auto", warm_start_lr=5e-4))
    with pytest.raises(NotTrainable, match=r"set training\.lr"):
        spec(Training(), parameters=None)


def test_where_rollouts_come_from_is_a_setting() -> None:
    assert isinstance(spec(Training(source="vllm")).sampler.source, VllmSource)
    with pytest.raises(NotTrainable, match=r"training\.endpoint names none"):
        spec(Training(source="endpoint"))
    settings = Training(source="endpoint", endpoint="http://e:1/v1", requests_per_second=2)
    source = spec(settings).sampler.source
    assert isinstance(source, EndpointSource)
    assert (source.url, source.model, source.max_requests_per_second) == (
        "http://e:1/v1", "reference", 2,
    )  # fmt: skip


def test_a_published_algorithm_is_taken_as_it_is() -> None:
    assert spec(Training(algorithm="dapo")).algorithm == preset("dapo")
    with pytest.raises(ValueError, match="there is none of this name"):
        Training(algorithm="nothing")
    assert spec(Training(algorithm="sentinel", kl=0.5)).algorithm == preset("sentinel")


def test_the_loops_own_algorithm_is_sentinel_with_groups_kept_for_the_penalty_alone() -> None:
    own, sentinel = spec().algorithm, preset("sentinel")
    assert own.loss.model_copy(update={"kl": sentinel.loss.kl}) == sentinel.loss
    assert (own.loss.kl.estimator, own.loss.kl.beta) == ("k2", 0.1)
    assert (own.filter.informative, own.filter.uniform) == (False, "zero")
    assert spec(Training(kl=0)).algorithm.filter.informative, "no penalty, nothing to keep them for"


@pytest.mark.parametrize("lacking", ["environment", "checkpoint"])
def test_an_agent_of_which_too_little_is_known_is_not_trained(lacking: str) -> None:
    agent = AGENT.model_copy(update={lacking: None})
    with pytest.raises(NotTrainable, match=f"agent agent has no {lacking}"):
        build_job_spec(Training(), agent, job="j", base="reference", pools=POOLS)


def test_a_model_plays_the_users_of_the_pools_in_the_jobs_own_environment() -> None:
    user = AdapterUser(adapter="u", folder="/adapters/u", sha256="0" * 64)
    repair = pool("mend", "address", 30, reward="repair")
    foreign = pool("away", "payment", 30, environment="retail")
    made = spec(pools=(*POOLS, repair, foreign), user=user)
    assert {item.name: item.user for item in made.pools} == {
        "weak": user, "other": user, "replay": user, "mend": None, "away": None,
    }  # fmt: skip
    assert spec().pools == POOLS, "without a model the spec is what it was"
