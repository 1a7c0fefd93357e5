"""The experiment on several environments: what they are, the jobs in them, and its report."""

from pathlib import Path

import pytest

from daemon.solver.reference.demonstrations import DEVELOPMENT, HELD_OUT, TRAINING
from daemon.solver.sampling.environments import open_environments
from daemon.solver.trajectory import Trajectory
from envs.environment import UnknownTask
from envs.registry import open_place
from envs.shop.environment import Shop
from events.jobs import JobSpec
from ops.learning.environments.__main__ import main
from ops.learning.environments.plan import join_specs
from ops.learning.environments.report import write_report
from ops.learning.environments.run import JobFigures, SampleFigures, SeedRun, count_samples, run
from ops.learning.environments.settings import (
    BASE,
    ENVIRONMENTS,
    JOINT,
    SEEDS,
    SETTINGS,
    UNTAUGHT,
    Settings,
)
from ops.learning.environments.shops import find_place
from ops.learning.results import NothingToReport, Source
from ops.learning.seeds import COMPARED, MERGED, MISLED, MIXED, PRACTISED, REPORTED, Seeds
from tests.daemon.solver.tiny import trajectory

TINY = Settings(budget=128, recorded=96, training={"groups": 4, "size": 16}, tasks=1, trials=1)


def build_spec(name: str, share: float = 1.0) -> JobSpec:
    """A job in one environment, with a target and as much replay."""
    kinds = ENVIRONMENTS[name]
    return JobSpec.model_validate(
        {
            "job": "j",
            "base": "reference",
            "checkpoint": "c",
            "environment": find_place(name),
            "pools": [
                {"name": "weak", "share": share, "tasks": [f"{name}/{kinds.weak[0]}/{n}" for n in
                                                          range(8)]},
                {"name": "replay", "share": share, "replay": True,
                 "tasks": [f"{name}/{kinds.plain[0]}/{n}" for n in range(8)]},
            ],
            "sampler": {"groups": 6, "size": 2, "rollouts": 120},
        }
    )  # fmt: skip


def test_no_kind_is_in_two_environments() -> None:
    kinds = [kind for own in ENVIRONMENTS.values() for kind in own.every]
    assert len({*kinds, *UNTAUGHT}) == len(kinds) + len(UNTAUGHT)
    for name, own in ENVIRONMENTS.items():
        environment = open_place(find_place(name))
        assert environment.name == name
        assert set(environment.capabilities) == set(own.every) == set(own.traffic)
        assert sum(own.traffic.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_has_the_tasks_of_the_shop_by_its_own_name(name: str) -> None:
    environment, shop = open_place(find_place(name)), Shop()
    for kind in ENVIRONMENTS[name].every:
        own, other = environment.generate(kind, 5), shop.generate(kind, 5)
        assert own.id == f"{name}/{kind}/5"
        assert environment.task(own.id) == own
        assert own.criteria == other.criteria
        assert own.script == other.script
        rephrased = environment.rephrase(own, 2)
        assert rephrased is None or environment.task(rephrased.id) == rephrased
    assert environment.catalog == shop.catalog
    with pytest.raises(UnknownTask, match=f"environment {name} has no .*return"):
        environment.generate("return", 1)


def test_reported_seeds_meet_no_others() -> None:
    for used in (REPORTED, COMPARED, PRACTISED, MERGED, MISLED, DEVELOPMENT, HELD_OUT, TRAINING):
        assert used.stop <= MIXED.start or MIXED.stop <= used.start
    for seed in SEEDS:
        Seeds.among(MIXED, seed)


def test_a_joint_job_has_the_tasks_and_budgets_of_all_and_equal_shares() -> None:
    specs = {
        name: build_spec(name, share) for name, share in zip(ENVIRONMENTS, (1, 2, 5), strict=True)
    }
    for kind in JOINT:
        joint = join_specs(specs, kind)
        assert joint.sampler.environments == kind
        assert joint.sampler.rollouts == 360
        assert joint.environments == tuple(find_place(name) for name in ENVIRONMENTS)
        assert [pool.share for pool in joint.pools] == [0.5] * 6
        assert [pool.environment for pool in joint.pools[:2]] == [None, None]
        opened = open_environments(joint, lambda _: None)
        assert {opened.find(task).name for task in joint.pools[3].tasks} == {"refusals"}
    assert len({join_specs(specs, kind).job for kind in JOINT} | {"j"}) == 3


def test_what_a_job_sampled_is_counted_by_environment() -> None:
    def group(task: str, *verdicts: bool) -> list[Trajectory]:
        return [trajectory(rollout=f"{task} {n}", group=task, task=task, success=passed)
                for n, passed in enumerate(verdicts)]  # fmt: skip

    batches = [
        [*group("changes/exchange/1", True, True), *group("changes/two_writes/2", True, False)],
        [*group("questions/question/1", False, False), *group("changes/two_writes/3", True, True)],
    ]
    sampled = count_samples(batches)
    assert set(sampled) == {"changes", "questions"}
    changes = sampled["changes"]
    assert (changes.rollouts, changes.batches, changes.passed) == (6, 2, 5 / 6)
    assert changes.informative == pytest.approx(1 / 3)
    assert sampled["questions"].informative == 0


def make_result(seed: int, settings: str = SETTINGS.digest) -> SeedRun:
    """Adapters of an environment pass its kinds alone, `mixed` all but those of no environment,
    `apart` every second task, the base these alone."""
    homes = {kind: name for name, own in ENVIRONMENTS.items() for kind in own.every}

    def passes(arm: str, kind: str, number: int) -> bool:
        if arm == "apart":
            return number % 2 == 0
        if arm == BASE:
            return kind in UNTAUGHT
        return homes.get(kind) == arm or (arm == "mixed" and kind in homes)

    sampled = SampleFigures(rollouts=768, batches=12, informative=0.25, passed=0.5, tokens=40)
    arms = (*ENVIRONMENTS, *JOINT)
    return SeedRun(
        seed=seed, development=False,
        source=Source(commit="c" * 40, clean=True, settings=settings, base="b" * 64),
        jobs={
            arm: JobFigures(
                environments=dict.fromkeys(ENVIRONMENTS if arm in JOINT else [arm], sampled),
                steps=12, sha256="a" * 64,
            )
            for arm in arms
        },
        outcomes={
            arm: {
                kind: {f"{kind}/{n}": (passes(arm, kind, n),) for n in range(8)}
                for kind in (*homes, *UNTAUGHT)
            }
            for arm in (BASE, *arms)
        },
        seconds=1.0, processor_seconds=60.0,
    )  # fmt: skip


def test_the_report_compares_joint_jobs_with_those_of_each_environment() -> None:
    report = write_report([make_result(1), make_result(2)], SETTINGS)
    lines = [line for line in report.splitlines() if line.startswith("| `")]
    assert "seeds 1, 2; 2 core-minutes" in report
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    three = next(line for line in lines if line.startswith("| `three`: "))
    assert "| 1.000 | 1.000 | 1.000 | 1.000 [1.000, 1.000] |" in three
    assert three.endswith("| 1.000 [1.000, 1.000] |"), "the base, on kinds of no environment"
    changes = next(line for line in lines if line.startswith("| `changes`: "))
    assert "| 1.000 | 0.000 | 0.000 | 0.333 [0.333, 0.333] |" in changes
    joint = rows["`mixed` less `three`"]
    assert "| +0.000 [+0.000, +0.000] | +0.000, +0.000 |" in joint
    assert joint.endswith("| -1.000 [-1.000, -1.000] |")
    assert "| -0.500 [" in rows["`apart` less `three`"]
    assert "| `mixed` | `questions` | 768 | 12.0 | 25% | 50% | 40 |" in report


def test_results_of_other_settings_and_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NothingToReport, match="seed 3 was made with the settings"):
        write_report([make_result(3, "0" * 64)], SETTINGS)
    assert main(["report", "--out", str(tmp_path)]) == 1
    assert "run some seeds first" in capsys.readouterr().err


@pytest.mark.learning
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_seed_has_every_policy_and_the_same_command_goes_on(tmp_path: Path) -> None:
    first = run(0, TINY, tmp_path, development=True)
    assert set(first.outcomes) == {BASE, *ENVIRONMENTS, *JOINT}
    for arm, figures in first.jobs.items():
        total = sum(sampled.rollouts for sampled in figures.environments.values())
        assert total == TINY.budget * (3 if arm in JOINT else 1)
    again = run(0, TINY, tmp_path, development=True)
    assert (again.outcomes, again.jobs) == (first.outcomes, first.jobs)
