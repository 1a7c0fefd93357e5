"""A job with a vLLM of its own: the reference policy on shop, killed, and begun midway."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from daemon.engine.chat import Chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.job import run
from daemon.solver.journal import DEFINITIONS, read, write_definitions
from daemon.solver.sampling.own_vllm import LOG, PYTHON_VARIABLE
from daemon.solver.spec import digest
from daemon.solver.telemetry.outcome import Outcome
from daemon.solver.trajectory import sequences, untrainable
from envs.episode import Episode, Party, play
from envs.shop.environment import Shop
from envs.task import write_body
from events.jobs import JobSpec
from ops.isolated import InstallError
from ops.vllm.environment import environment
from tests.conftest import missing
from tests.daemon.solver import letters

KINDS = ("two_writes", "fallback", "question", "changed_mind")
"""Passed now and then by the reference policy, so that a batch teaches something."""

WHOLE_PROMPTS = "--no-enable-chunked-prefill"
"""The CPU build (0.32) dies of a request with a seed whose prompt it reads in parts."""


def shop(folder: Path) -> dict[str, Any]:
    tasks = [f"shop/{kind}/{seed}" for kind in KINDS for seed in range(3)]
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "job": "j",
        "base": "reference",
        "checkpoint": str(CHECKPOINT),
        "environment": "shop",
        "pools": [{"name": "weak", "tasks": tasks}],
        "threads": 1,
        "sampler": {
            "groups": 6,
            "size": 6,
            "rollouts": 108,
            "max_tokens": 64,
            "source": {"kind": "vllm", "arguments": ["--max-model-len=512", WHOLE_PROMPTS]},
        },
    }


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    try:
        python = environment() / "bin" / "python"
    except InstallError as error:
        missing(str(error))
    return os.environ | {PYTHON_VARIABLE: str(python), "VLLM_CPU_KVCACHE_SPACE": "1"}


def servers(folder: Path) -> list[int]:
    """Processes of a vLLM that was started in this folder."""
    return [int(path.parent.name) for path in _working_directories() if _is(path, folder)]


def _working_directories() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*/cwd")


def _is(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False  # It ended, or is somebody else's.


def entries(folder: Path) -> list[bytes]:
    """Of the journal, its head left out."""
    return (folder / "rollouts.jsonl").read_bytes().splitlines()[1:]


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_job_that_is_killed_goes_on_with_the_rollouts_it_had(
    settings: dict[str, str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    spec, out = tmp_path / "job.json", tmp_path / "out"
    spec.write_text(json.dumps(shop(tmp_path)))
    command = [sys.executable, "-m", "daemon.solver", str(spec), "--out", str(out)]
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        while "metrics" not in (line := killed.stdout.readline()):
            assert line, (out / LOG).read_text()[-3000:]
        assert servers(out)
        killed.kill()
    while servers(out):
        os.sched_yield()
    before = entries(out)
    resumed = subprocess.run(
        command, env=settings, capture_output=True, text=True, check=False, timeout=600
    )
    assert resumed.returncode == 0, resumed.stderr
    assert not servers(out)
    last = Outcome.model_validate_json(resumed.stdout.splitlines()[-1])
    assert entries(out)[: len(before)] == before
    assert len(entries(out)) == 3
    assert last.steps > 0

    again, whole = tmp_path / "again", JobSpec.model_validate_json(spec.read_bytes())
    again.mkdir()
    (again / "rollouts.jsonl").write_bytes((out / "rollouts.jsonl").read_bytes())
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv(PYTHON_VARIABLE, settings[PYTHON_VARIABLE])
        through = run(whole, again)
    assert (through.steps, through.rollouts) == (last.steps, last.rollouts)
    assert not (again / LOG).exists(), "with all rollouts in the journal no server is started"
    difference = largest_difference(out, again)
    record_property("largest_weight_difference", difference)
    print(f"largest weight difference: {difference:g}")
    assert difference == 0.0, "one machine, one number of threads, the same rollouts"


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_prefix_is_read_by_a_vllm_and_nothing_of_it_counts_as_written(
    settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, settings[PYTHON_VARIABLE])
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    here, chat, begun = Shop(), Chat(CHECKPOINT), []
    for kind in KINDS:
        task = here.generate(kind, 1)
        episode = play(Episode(here, task), here.oracle(task), here.user(task))
        prefix = {"prefix": tuple(episode.messages[:3])}
        begun.append(task.model_copy(update=prefix).name_by_content())
    document = shop(tmp_path)
    document["pools"] = [{"name": "weak", "tasks": [task.id for task in begun]}]
    document["sampler"] |= {"groups": 4, "size": 4, "rollouts": 16}
    spec, out = JobSpec.model_validate(document), tmp_path / "out"
    out.mkdir()
    bodies = {task.id: write_body(task.dump_body()) for task in begun}
    (out / DEFINITIONS).write_bytes(write_definitions(bodies))
    run(spec, out)

    batches, _ = read(out / "rollouts.jsonl", digest(spec))
    trajectories = [trajectory for batch in batches for trajectory in batch]
    assert {trajectory.task for trajectory in trajectories} == set(bodies)
    first = {task.id: chat.prompt(Episode(here, task).view(Party.AGENT)) for task in begun}
    for trajectory in trajectories:
        assert untrainable(trajectory, chat.ends) is None
        prompt = first[trajectory.task]
        assert trajectory.turns[0].prompt_ids == prompt
        rows = sequences(trajectory)
        assert not any(rows[0].written[: len(prompt)])
        assert sum(row.tokens for row in rows) == trajectory.tokens


def largest_difference(one: Path, other: Path) -> float:
    """Between the weights of two jobs' adapters."""
    first, second = (
        load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other)
    )
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.parametrize(
    ("named", "reason"), [(None, PYTHON_VARIABLE), ("no-such-python", "no-such-python is no")]
)
def test_a_job_without_an_interpreter_for_it_is_told_so(
    named: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    base = letters.checkpoint(tmp_path / "base")
    sampler = {**letters.spec(base)["sampler"], "source": {"kind": "vllm", "python": named}}
    outcome = run(JobSpec.model_validate(letters.spec(base, sampler=sampler)), tmp_path / "out")
    assert outcome.outcome == "failed"
    assert reason in str(outcome.reason)


def test_a_server_that_does_not_start_ends_the_job_with_the_end_of_its_log(tmp_path: Path) -> None:
    base = letters.checkpoint(tmp_path / "base")
    source = {"kind": "vllm", "python": sys.executable}
    sampler = {**letters.spec(base)["sampler"], "source": source}
    outcome = run(JobSpec.model_validate(letters.spec(base, sampler=sampler)), tmp_path / "out")
    assert outcome.outcome == "failed"
    assert "vLLM exited while starting" in str(outcome.reason)
    assert "No module named" in str(outcome.reason)
