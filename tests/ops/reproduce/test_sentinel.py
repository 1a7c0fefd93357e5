"""The table of base, general and targeted training: its plan, its errors, and the whole of it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.engine.adapters import Adapters
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.engine.server import Server
from daemon.solver.reference.demonstrations import vocabulary
from envs.shop.environment import Shop
from events.jobs import JobSpec, TaskPool
from ops.reproduce.__main__ import main
from ops.reproduce.commands import Folder
from ops.reproduce.endpoint import WrongCheckpoint, check_endpoint
from ops.reproduce.homes import open_plan_environment
from ops.reproduce.options import BENCHMARKS
from ops.reproduce.sentinel.settings import ENVIRONMENTS, POLICIES, SMALL, Reproduction
from ops.reproduce.sentinel.training import (
    NoJob,
    draw_traffic,
    exclude_evaluated,
    read_signatures,
)
from tests.daemon.engine.random_model import checkpoint as random_checkpoint
from tests.daemon.listening import at_a_port
from tests.ops.reproduce.engine import run_engine

NOWHERE = "http://127.0.0.1:9/v1"
"""A URL at which nothing listens."""


def options(out: Path, url: str = NOWHERE) -> list[str]:
    return [
        "sentinel", "--out", str(out), "--base-url", url, "--checkpoint", str(CHECKPOINT),
        "--model", "reference", "--env", "shop", "--small",
    ]  # fmt: skip


def planned(url: str, checkpoint: Path = CHECKPOINT) -> Reproduction:
    return Reproduction(
        base_url=url,
        model="reference",
        checkpoint=checkpoint,
        env="shop",
        split="generated",
        benchmarks=None,
        counts=SMALL,
        traffic=ENVIRONMENTS["shop"].traffic,
        max_tokens=64,
        user_model=None,
        user_base_url=None,
        source="endpoint",
        device="cpu",
        dtype="float32",
        seed=0,
        concurrency=32,
    )


def test_the_plan_names_every_stage_with_its_command_and_asks_no_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(tmp_path), "--plan"]) == 0
    text = capsys.readouterr().out
    stages = re.findall(r"^# ([a-z-]+): [^\n]*\n(.+)$", text, re.MULTILINE)
    assert [name for name, _ in stages] == [
        "check", "evaluate-base", "record", "diagnose", "write-tasks", "train-general",
        "train-targeted", "load", "evaluate-general", "evaluate-targeted", "report",
    ]  # fmt: skip
    commands = dict(stages)
    assert commands["evaluate-base"].startswith("kintsugi eval --env shop")
    assert commands["train-general"].startswith("python -m daemon.solver")
    episodes = {
        name: int(count.replace(",", ""))
        for name, count in re.findall(r"^# ([a-z-]+): .*; ([\d,]+) episodes", text, re.MULTILINE)
    }
    assert episodes["record"] + episodes["train-targeted"] == episodes["train-general"]
    assert list(tmp_path.iterdir()) == []


def test_whole_counts_evaluate_a_number_of_generated_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [option for option in options(tmp_path) if option != "--small"]
    assert main([*whole, "--plan"]) == 0
    assert capsys.readouterr().out.startswith("# 200 evaluated tasks of shop")


def test_an_endpoint_that_is_away_ends_with_4_and_leaves_no_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options(tmp_path)) == 4
    assert NOWHERE in capsys.readouterr().err
    assert not (tmp_path / "stages").exists()


def test_real_tasks_without_their_folder_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BENCHMARKS, raising=False)
    retail = [*options(tmp_path), "--env", "retail", "--plan"]
    assert main(retail) == 2
    assert BENCHMARKS in capsys.readouterr().err
    monkeypatch.setenv(BENCHMARKS, str(tmp_path / "nothing"))
    assert main(retail) == 2
    assert "nothing" in capsys.readouterr().err
    assert not (tmp_path / "reproduction.json").exists()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (["--checkpoint", "/nowhere"], "config.json"),
        (["--only", "sleep"], "no stage"),
        (["--seed", "1"], "other options"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: list[str], reason: str
) -> None:
    assert main([*options(tmp_path), "--only", "check"]) == 4
    assert main([*options(tmp_path), *changed]) == 2
    assert reason in capsys.readouterr().err


def test_a_stage_says_which_one_comes_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(tmp_path), "--only", "check"]) == 4
    assert main(["sentinel", "--out", str(tmp_path), "--only", "report"]) == 1
    assert "evaluate-base" in capsys.readouterr().err


def test_no_task_is_trained_on_that_asks_for_the_calls_of_an_evaluated_one() -> None:
    plan = planned(NOWHERE)
    shop = open_plan_environment(plan)
    signatures = read_signatures(plan, shop)
    evaluated = draw_traffic(plan, shop, 0, SMALL.tasks or 0)
    others = draw_traffic(plan, shop, 1_000_000, 8)
    assert {shop.task(task).signature for task in evaluated} == signatures
    pools, excluded = exclude_evaluated(
        shop, [TaskPool(name="traffic", tasks=(*evaluated[:3], *others))], signatures
    )
    assert excluded == 3
    assert [pool.tasks for pool in pools] == [others]
    with pytest.raises(NoJob, match="evaluated"):
        exclude_evaluated(shop, [TaskPool(name="traffic", tasks=evaluated)], signatures)


@pytest.fixture(scope="module")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with the vocabulary of the reference policy."""
    return random_checkpoint(tmp_path_factory.mktemp("other") / "tiny", vocabulary(Shop()))


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_a_checkpoint_that_the_endpoint_does_not_serve_is_refused(other_checkpoint: Path) -> None:
    policy, chat = Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT)
    server = Server(Adapters(policy, "a checkpoint"), chat, Engine(policy, slots=8))
    with at_a_port(server.app) as url:
        served = planned(f"{url}/v1")
        assert check_endpoint(served) < 1e-3
        with pytest.raises(WrongCheckpoint, match="nats"):
            check_endpoint(served.model_copy(update={"checkpoint": other_checkpoint}))
        with pytest.raises(WrongCheckpoint, match="--model"):
            check_endpoint(served.model_copy(update={"model": "another"}))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_killed_run_goes_on_and_ends_with_the_table(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    with run_engine(tmp_path / "engine.log") as url:
        command = [sys.executable, "-m", "ops.reproduce", *options(folder.path, url)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
            while not folder.result("record").exists():
                assert first.poll() is None, "it ended before it was killed"
                time.sleep(0.2)
            first.kill()
        before = folder.result("evaluate-base").stat().st_mtime_ns
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert folder.result("evaluate-base").stat().st_mtime_ns == before
        again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout == done.stdout
    assert "train-general: done before" in again.stderr
    specs = {
        policy: JobSpec.model_validate_json(folder.spec(policy).read_bytes())
        for policy in POLICIES
        if policy != "base"
    }
    spent = {policy: spec.sampler.rollouts for policy, spec in specs.items()}
    assert spent["targeted"] + SMALL.recorded == spent["general"] == SMALL.rollouts
    assert specs["targeted"].algorithm == specs["general"].algorithm
    assert folder.read("record")["rollouts"] == SMALL.recorded
    report = json.loads(folder.result("report").read_bytes())
    assert all(set(report["pass_hat"][policy]) == {"1", "2"} for policy in POLICIES)
    assert all(f"| {policy} | {SMALL.tasks} |" in done.stdout for policy in POLICIES)
