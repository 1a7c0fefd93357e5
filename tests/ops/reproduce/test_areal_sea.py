"""The table of AReaL-SEA: its plan, its errors, its jobs, its figures, and the whole of it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.engine.reference.weights import CHECKPOINT
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from daemon.solver.journal import parse_definitions, read_definitions
from daemon.solver.kinds import check_supported
from events.jobs import AdapterUser, EndpointUser, JobSpec
from ops.reproduce.__main__ import main
from ops.reproduce.areal_sea.commands import find_tasks
from ops.reproduce.areal_sea.jobs import (
    draw_tasks,
    plan_reinforced,
    plan_supervised,
    write_jobs,
    write_tasks,
)
from ops.reproduce.areal_sea.settings import PUBLISHED, SMALL, Reproduction
from ops.reproduce.areal_sea.table import compare, tabulate_arms
from ops.reproduce.commands import Folder
from ops.reproduce.homes import open_plan_environment
from ops.reproduce.options import BENCHMARKS
from tests.ops.reproduce.engine import run_engine

NOWHERE = "http://127.0.0.1:9/v1"
"""A URL at which nothing listens."""


@pytest.fixture(autouse=True)
def no_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is named but where a test names one."""
    monkeypatch.delenv(BENCHMARKS, raising=False)


def options(out: Path, url: str = NOWHERE) -> list[str]:
    return [
        "areal-sea", "--out", str(out), "--base-url", url, "--checkpoint", str(CHECKPOINT),
        "--model", "reference", "--env", "shop", "--small",
    ]  # fmt: skip


def planned(out: Path, *more: str) -> Reproduction:
    """The plan of these options, which the folder holds from its first stage on."""
    assert main([*options(out), *more, "--only", "check"]) == 4
    return Reproduction.model_validate_json(Folder(out).settings.read_bytes())


def test_the_plan_names_every_stage_with_its_command_and_asks_no_endpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(tmp_path), "--proposer-model", "writer", "--plan"]) == 0
    text = capsys.readouterr().out
    stages = re.findall(r"^# ([a-z_-]+): [^\n]*\n(.+)$", text, re.MULTILINE)
    assert [name for name, _ in stages] == [
        "check", "evaluate-base-shop", "write-tasks-shop", "write-specs-shop", "train-user-shop",
        "write-gate-shop", "gate-shop", "train-sft-shop", "train-rl_base_user-shop",
        "train-rl_tuned_user-shop", "load-shop", "evaluate-sft-shop", "evaluate-rl_base_user-shop",
        "evaluate-rl_tuned_user-shop", "report",
    ]  # fmt: skip
    commands = dict(stages)
    assert commands["train-sft-shop"].startswith("python -m daemon.solver")
    assert commands["gate-shop"].startswith("python -m daemon.methods.synthesis.users.trial")
    assert commands["evaluate-sft-shop"].startswith("kintsugi eval --env shop")
    assert "tasks of shop by writer" in text
    assert "preset areal_paper; 64 episodes" in text
    assert list(tmp_path.iterdir()) == []


def test_the_three_domains_are_one_table(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    whole = plan.model_copy(update={"env": "tau2"})
    assert whole.domains == ("retail", "airline", "telecom")
    assert plan.domains == ("shop",)
    names = {whole.name_policy("sft", domain) for domain in whole.domains}
    assert len(names) == 3
    assert whole.name_policy("base", "retail") == "reference"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (["--env", "tau2"], BENCHMARKS),
        (["--source", "in_process"], "--source endpoint"),
        (["--proposer-base-url", NOWHERE], "--proposer-model"),
        (["--only", "sleep"], "no stage"),
        (["--seed", "1"], "other options"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: list[str], reason: str
) -> None:
    planned(tmp_path)
    assert main([*options(tmp_path), *changed]) == 2
    assert reason in capsys.readouterr().err


def test_jobs_train_on_accepted_tasks_and_differ_in_who_plays_the_user(tmp_path: Path) -> None:
    plan, folder = planned(tmp_path), Folder(tmp_path)
    written = write_tasks(plan, folder, "shop")
    folder.write("write-tasks-shop", written)
    accepted = written["accepted"]
    bodies = parse_definitions(find_tasks(folder, "shop").read_bytes())
    assert sorted(accepted) == sorted(bodies)
    assert written["plans"] == SMALL.plans
    assert len(accepted) <= SMALL.written
    assert write_jobs(plan, folder, "shop").keys() == {"user", "sft"}
    supervised = plan_supervised(plan, "shop", accepted)
    adapter = AdapterUser(adapter="user", folder="/nowhere", sha256="0" * 64)
    reinforced = plan_reinforced(plan, folder, "shop", accepted, adapter)
    for spec in (*supervised.values(), *reinforced.values()):
        check_supported(spec)
    assert supervised["user"].teaches == "user"
    (shown,), (practised,) = supervised["sft"].pools, reinforced["rl_base_user"].pools
    assert len(shown.references) == SMALL.shown
    assert not set(shown.references) & set(practised.tasks)
    assert set(read_definitions(folder.job("sft-shop"))) == {*shown.tasks, *shown.references}
    users = [spec.pools[0].user for spec in reinforced.values()]
    assert isinstance(users[0], EndpointUser)
    assert (users[0].url, users[0].model) == (NOWHERE, "reference")
    assert users[1] == adapter
    same = [
        spec.model_copy(
            update={"job": "job", "pools": (spec.pools[0].model_copy(update={"user": None}),)}
        )
        for spec in reinforced.values()
    ]
    assert same[0] == same[1]
    assert same[0].parent == str(folder.adapter("sft-shop"))


def test_gates_draw_tasks_of_all_kinds_from_seeds_that_nothing_is_evaluated_on(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path)
    environment = open_plan_environment(plan)
    tasks = draw_tasks(environment, plan, 300)
    assert len(set(tasks)) == 300
    assert {environment.task(task).capability for task in tasks} == set(environment.capabilities)
    assert all(FIRST_SEED <= int(task.rpartition("/")[2]) <= LAST_SEED for task in tasks)


def test_the_table_has_the_papers_figures_beside_the_measured_ones() -> None:
    found = {"pass_hat": {"1": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    text = tabulate_arms({("telecom", "rl_tuned_user"): found, ("retail", "sft"): found})
    assert "0.500 [0.400, 0.600] | 0.956 |" in text
    assert "0.500 [0.400, 0.600] |  |" in text
    assert max(PUBLISHED.values()) == PUBLISHED["telecom", "rl_tuned_user"]


def test_differences_are_over_common_tasks_alone() -> None:
    verdicts = {
        "base": {"a": [False, False], "b": [False, True]},
        "sft": {"a": [True, False], "b": [True, True], "c": [True, True]},
        "rl_base_user": {},
        "rl_tuned_user": {"a": [True, True]},
    }
    differences = compare(verdicts)
    assert set(differences) == {"sft less base", "rl_tuned_user less sft"}
    count, gain = differences["sft less base"]
    assert count == 2
    assert gain.value == pytest.approx(0.5)
    assert gain.low < 0.5 < gain.high


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_killed_run_goes_on_and_ends_with_the_table(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run")
    with run_engine(tmp_path / "engine.log") as url:
        command = [sys.executable, "-m", "ops.reproduce", *options(folder.path, url)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
            while not folder.result("train-user-shop").exists():
                assert first.poll() is None, "it ended before it was killed"
                time.sleep(0.2)
            first.kill()
        before = folder.result("write-tasks-shop").stat().st_mtime_ns
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 3), done.stderr
        assert folder.result("write-tasks-shop").stat().st_mtime_ns == before
    spec = JobSpec.model_validate_json(folder.spec("rl_tuned_user-shop").read_bytes())
    assert isinstance(spec.pools[0].user, AdapterUser)
    report = json.loads(folder.result("report").read_bytes())
    # The reference policy is no user: where all its users err, a job teaches nothing and says so.
    assert {"base-shop", "sft-shop"} <= set(report["pass_hat"])
    for arm in ("rl_base_user", "rl_tuned_user"):
        assert f"{arm}-shop" in report["pass_hat"] or f"`{arm}` in shop has no" in done.stdout
    assert report["gates"]["shop"]["dialogues"] == SMALL.gate
    assert "| shop | `sft`" in done.stdout
    assert "The user's gate: " in done.stdout
