"""A job over tasks by content: it plays those whose bodies lie in its directory, also after a
kill."""

import json
import logging
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.adapters.directory import verify
from daemon.solver.job import Job, run
from daemon.solver.journal import DEFINITIONS, read_definitions, write_definitions
from daemon.solver.spec import NothingPlayable, drop_tasks, list_tasks
from envs.registry import open_place
from envs.task import TaskDefinition, write_body
from events.jobs import JobSpec
from events.messages import Message
from tests.daemon.solver import letters
from tests.daemon.solver.forked import ForkedJob


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


def tasks(first: int, count: int) -> list[TaskDefinition]:
    """Tasks that no generator makes: of letters in words of their own."""
    here = open_place(letters.ENVIRONMENT)
    made = []
    for seed in range(first, first + count):
        task = here.generate("half", seed)
        scenario = task.scenario.model_copy(update={"persona": f"You are number {seed}."})
        made.append(task.model_copy(update={"scenario": scenario}).name_by_content())
    return made


TASKS = tasks(0, 8)
KEPT = tasks(100, 4)
SAMPLER = {"groups": 4, "size": 4, "rollouts": 64, "max_tokens": 24}


def spec(base: Path, **changes: Any) -> JobSpec:
    pools = [
        {"name": "target", "tasks": [task.id for task in TASKS]},
        {"name": "kept", "share": 0.5, "replay": True, "tasks": [task.id for task in KEPT]},
    ]
    return JobSpec.model_validate(
        letters.spec(base, **{"pools": pools, "sampler": SAMPLER, **changes})
    )


def bodies(*given: TaskDefinition) -> dict[str, str]:
    return {task.id: write_body(task.dump_body()) for task in given}


def lay(folder: Path, *given: TaskDefinition) -> Path:
    """The directory of a job with these bodies in it."""
    folder.mkdir()
    (folder / DEFINITIONS).write_bytes(write_definitions(bodies(*given)))
    return folder


def played(folder: Path) -> set[str]:
    """Tasks of the journal."""
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines()[1:]
    return {rollout["task"] for line in lines for rollout in json.loads(line)}


@pytest.mark.processes
def test_a_killed_job_goes_on_to_the_same_adapter(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    whole = run(job, lay(tmp_path / "whole", *TASKS, *KEPT))
    assert whole.outcome == "trained", whole.reason
    assert played(tmp_path / "whole") <= {task.id for task in (*TASKS, *KEPT)}
    assert verify(tmp_path / "whole" / "adapter").spec == job.model_dump(mode="json")

    killed = lay(tmp_path / "killed", *TASKS, *KEPT)
    (tmp_path / "job.json").write_text(job.model_dump_json())
    with ForkedJob(["job.json", "--out", str(killed)], folder=tmp_path) as one:
        while not (killed / "rollouts.jsonl").exists():
            assert one.poll() is None
            time.sleep(0.01)
        assert one.kill() == -signal.SIGKILL
    assert run(job, killed).sha256 == whole.sha256


@pytest.mark.parametrize("damage", ["missing", "different", "no line"])
def test_a_task_without_its_body_is_left_out_and_named(
    base: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = bodies(*TASKS, *KEPT)
    lost = TASKS[0].id
    if damage == "different":
        known[lost] = known[TASKS[1].id]
    else:
        del known[lost]
    out = lay(tmp_path / "out")
    more = b'{"task": 1}\nno line\n' if damage == "no line" else b""
    (out / DEFINITIONS).write_bytes(write_definitions(known) + more)
    job = spec(base)
    with caplog.at_level(logging.WARNING):
        outcome = run(job, out)
    assert outcome.outcome == "trained", outcome.reason
    assert lost in caplog.text
    assert lost not in played(out)
    assert verify(out / "adapter").spec == job.model_dump(mode="json"), "as it was requested"
    assert run(job, out) == outcome, "a finished job repeats its outcome"


def test_a_pool_that_loses_its_tasks_is_left_out_by_name(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = lay(tmp_path / "out", *TASKS)
    with caplog.at_level(logging.WARNING):
        assert run(spec(base), out).outcome == "trained"
    assert "pool kept is left out" in caplog.text
    assert played(out) <= {task.id for task in TASKS}


@pytest.mark.parametrize("file", [True, False], ids=["other bodies", "no file"])
def test_a_job_that_has_nothing_to_learn_ends_with_the_reason(
    base: Path, tmp_path: Path, file: bool
) -> None:
    out = tmp_path / "out"
    if file:
        lay(out, *KEPT)
    outcome = run(spec(base), out)
    assert outcome.outcome == "failed"
    assert "no task is left of what shall be learnt (target)" in str(outcome.reason)
    assert "kintsugi tasks add" in str(outcome.reason)


def test_a_task_whose_prefix_does_not_replay_is_left_out(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Message(role="user", content="Hello.")
    good, bad = (
        task.model_copy(update={"prefix": prefix}).name_by_content()
        for task, prefix in zip(TASKS, [(opening,), (opening, opening)], strict=False)
    )
    job = spec(base, pools=[{"name": "target", "tasks": [good.id, bad.id]}])
    out = lay(tmp_path / "out", good, bad)
    with caplog.at_level(logging.WARNING):
        outcome = run(job, out)
    assert outcome.outcome == "trained", outcome.reason
    assert "message 1: a message of user, at the agent's turn" in caplog.text
    assert played(out) == {good.id}


BROKEN = """
from tests.daemon.solver import letters


class Broken(letters.Letters):
    name = "letters"

    def pristine(self, task):
        raise KeyError("shelf")
"""


def test_an_environment_that_fails_on_a_prefix_ends_the_job_with_a_sentence(
    base: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    opening = Message(role="user", content="Hello.")
    task = TASKS[0].model_copy(update={"prefix": (opening,)}).name_by_content()
    pools = [{"name": "target", "tasks": [task.id]}]
    job = spec(base, pools=pools, environment=str(tmp_path / "broken.py"))
    outcome = run(job, lay(tmp_path / "out", task))
    assert outcome.outcome == "failed"
    assert f"environment letters, task {task.id}: KeyError: 'shelf'" in str(outcome.reason)


def test_bodies_that_were_lost_between_two_attempts_are_seen(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    out = lay(tmp_path / "out", *TASKS, *KEPT)
    with Job(job, out) as first:
        next(iter(first))
    drawn = played(out)
    left = [task for task in (*TASKS, *KEPT) if task.id not in drawn or task.id == TASKS[0].id]
    (out / DEFINITIONS).write_bytes(write_definitions(bodies(TASKS[0], *left)))
    outcome = run(job, out)
    assert outcome.outcome == "failed"
    assert "definitions.jsonl had other bodies" in str(outcome.reason)


def test_the_file_of_bodies_is_the_same_for_the_same_bodies(tmp_path: Path) -> None:
    known = bodies(*TASKS)
    turned = dict(reversed(known.items()))
    assert write_definitions(known) == write_definitions(turned)
    assert read_definitions(lay(tmp_path / "out", *TASKS)) == known
    assert read_definitions(tmp_path) == {}


def test_what_is_dropped_leaves_a_spec_that_can_be_played(base: Path) -> None:
    first, second, *others = TASKS
    job = spec(
        base,
        pools=[
            {"name": "a", "tasks": [first.id], "references": [second.id]},
            {"name": "b", "tasks": [task.id for task in others], "references": ["letters/half/1"]},
        ],
        warm_start={"mode": "always", "siblings": [KEPT[0].id]},
    )
    assert drop_tasks(job, ()) is job
    assert set(list_tasks(job)) == {
        *(task.id for task in (first, second, *others, KEPT[0])), "letters/half/1",
    }  # fmt: skip
    dropped = drop_tasks(job, {first.id, KEPT[0].id})
    assert [pool.name for pool in dropped.pools] == ["b"]
    assert dropped.warm_start is not None
    assert dropped.warm_start.siblings == ()
    without = drop_tasks(job, {second.id, "letters/half/1"})
    assert without.warm_start is None, "nothing is left that it could show"
    alone = job.model_copy(update={"grpo": False})
    with pytest.raises(NothingPlayable, match="a warm start alone"):
        drop_tasks(alone, {second.id, "letters/half/1"})
