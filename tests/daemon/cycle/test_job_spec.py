"""From settings and tasks to a job's spec: the same request is the same spec."""

from pathlib import Path
from typing import Any

import pytest

from daemon.config.presets import preset
from daemon.config.settings import Agent, Training
from daemon.cycle.job_spec import NotTrainable, build_job_spec, name_capability, seed_of
from envs.registry import open_place
from events.jobs import EndpointSource, JobSpec, TaskPool, VllmSource
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
    given: dict[str, Any] = {"job": "j", "base": "reference", "pools": POOLS}
    return build_job_spec(training or Training(), AGENT, **(given | changes))


def test_a_spec_is_a_function_of_what_it_is_made_from() -> None:
    assert spec() == spec()
    assert spec().seed == seed_of("j") != seed_of("k")
    assert spec(job="k").seed == seed_of("k")
    made = spec(parent=Path("/adapters/a"), benchmarks=Path("/benchmarks"))
    assert (made.parent, made.benchmarks) == ("/adapters/a", "/benchmarks")
    assert (made.checkpoint, made.environment, made.pools) == ("/models/base", "shop", POOLS)
    assert JobSpec.model_validate_json(made.model_dump_json()) == made


def test_a_job_finds_an_environment_that_only_the_settings_know(tmp_path: Path) -> None:
    file = write_environment(tmp_path / "mine.py", "mine")
    agent = AGENT.model_copy(update={"environment": "mine"})
    made = build_job_spec(
        Training(), agent, job="j", base="reference", pools=POOLS, environments=[tmp_path]
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
    assert (len(other.references), replay) == (10, POOLS[2])
    assert made.warm_start is not None
    assert made.warm_start.mode == "auto"
    with pytest.raises(NotTrainable, match=r"pool other has 30 tasks.*lower training\.references"):
        spec(Training(warm_start="always", references=30))


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
    assert spec().algorithm.loss.kl.beta == 0.1
    assert spec(Training(kl=0)).algorithm.filter.informative


@pytest.mark.parametrize("lacking", ["environment", "checkpoint"])
def test_an_agent_of_which_too_little_is_known_is_not_trained(lacking: str) -> None:
    agent = AGENT.model_copy(update={lacking: None})
    with pytest.raises(NotTrainable, match=f"agent agent has no {lacking}"):
        build_job_spec(Training(), agent, job="j", base="reference", pools=POOLS)
