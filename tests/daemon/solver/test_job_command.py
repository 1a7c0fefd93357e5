"""`python -m daemon.solver` as its callers meet it: lines, exit codes, kills, a full disk."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from daemon.adapters.directory import WEIGHTS, verify
from daemon.solver.__main__ import main
from ops.isolated import interpreter, ours
from ops.processes import find_ports
from tests.daemon.solver import letters
from tests.daemon.solver.forked import (
    Action,
    Done,
    ForkedJob,
    die_at_call,
    replace_call,
    run_forked,
)

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-m", "daemon.solver"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


def job(base: Path, folder: Path, **changes: Any) -> list[str]:
    """The arguments of a job in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.json"
    path.write_text(json.dumps(letters.spec(base, **changes)))
    return [str(path), "--out", str(folder / "out")]


def ended(command: list[str]) -> Done:
    """Run a real command line to its end."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return Done.read(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A job that nobody disturbed."""
    return ended([*COMMAND, *job(base, tmp_path_factory.mktemp("whole"))])


def test_a_job_says_lines_of_json_and_last_its_outcome(whole: Done) -> None:
    assert whole.code == 0
    assert whole.last.keys() == {"outcome", "adapter", "sha256", "steps", "rollouts", "reason"}
    assert whole.last["outcome"] == "trained"
    adapter = Path(whole.last["adapter"])
    assert verify(adapter).files["adapter_model.safetensors"] == whole.last["sha256"]
    assert [line["rollouts"] for line in whole.updates] == list(range(16, 129, 16))
    beats = [line["heartbeat"] for line in whole.lines if "heartbeat" in line]
    assert beats[0]["phase"] == "starting"
    assert len(whole.lines) == len(beats) + len(whole.updates) + 1
    assert "Loading" not in json.dumps(whole.lines)


def test_a_field_that_does_not_exist_is_named(base: Path, tmp_path: Path) -> None:
    done = run_forked(job(base, tmp_path, learning_rate=1))
    assert done.code == 2
    assert [line["outcome"] for line in done.lines] == ["failed"]
    assert "learning_rate: Extra inputs are not permitted" in done.last["reason"]
    assert "learning_rate: Extra inputs are not permitted" in done.complaint
    assert not (tmp_path / "out").exists()


def test_a_gap_has_an_exit_code_of_its_own(base: Path, tmp_path: Path) -> None:
    pools = [{"name": "word", "tasks": letters.ids("spell", 0, 20)}]
    done = run_forked(job(base, tmp_path, pools=pools))
    assert done.code == 3
    assert done.last["outcome"] == "competence_gap"
    assert done.last["adapter"] is None
    assert "spell: 0 of" in done.last["reason"]


def test_what_is_missing_is_a_failure_with_a_last_line(base: Path, tmp_path: Path) -> None:
    done = run_forked(job(base, tmp_path, checkpoint="nowhere"))
    assert done.code == 1
    assert done.last["outcome"] == "failed"
    assert "nowhere holds no checkpoint" in done.last["reason"]
    assert "nowhere holds no checkpoint" in done.complaint
    assert "Traceback" not in done.complaint


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        (None, 1, "No such file"),
        (b"{", 2, "is no spec of a job: it is no JSON"),
        (b"[" * 100_000, 2, "nested deeper than 100 levels"),
        (b"\xff", 2, "it is no UTF-8"),
    ],
)
def test_a_spec_that_cannot_be_read_is_a_failure_with_a_last_line(
    content: bytes | None, code: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    if content is not None:
        path.write_bytes(content)
    done = ended([*COMMAND, str(path), "--out", str(tmp_path / "out")])
    assert (done.code, done.last["outcome"]) == (code, "failed")
    assert reason in done.last["reason"]
    assert "Traceback" not in done.complaint


def test_a_number_outside_its_range_is_named(base: Path, tmp_path: Path) -> None:
    done = run_forked(job(base, tmp_path, optimizer={"lr": 1e300}))
    assert (done.code, done.last["outcome"]) == (2, "failed")
    assert "optimizer.lr is 1e+300, outside of its range, 1e-12 to 10" in done.last["reason"]


def fail_appends(error: BaseException) -> None:
    """Make the journal raise this at the first batch."""

    def fail(*_given: object) -> None:
        raise error

    replace_call("daemon.solver.journal:Journal.append", lambda _: fail)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("odd \ud800"), "ValueError: odd \ufffd; its log has the traceback"),
        (MemoryError(), "MemoryError; its log has the traceback"),
        (RecursionError("x" * 100_000), "RecursionError: xxx"),
        (KeyboardInterrupt(), "KeyboardInterrupt; "),
        (SystemExit(0), "SystemExit: 0; "),
    ],
    ids=["ValueError", "MemoryError", "RecursionError", "KeyboardInterrupt", "SystemExit"],
)
def test_an_error_that_nobody_expects_is_a_failure_with_a_last_line(
    error: BaseException, reason: str, base: Path, tmp_path: Path
) -> None:
    """A runner tries it again: the reason ends as that of any job that can go on."""
    done = run_forked(job(base, tmp_path), before=partial(fail_appends, error))
    assert (done.code, done.last["outcome"]) == (1, "failed")
    assert done.last["reason"].startswith(reason)
    assert done.last["reason"].endswith("run the same command to go on")
    assert len(json.dumps(done.last)) < 5_000
    assert "Traceback" in done.complaint
    assert done.complaint.splitlines()[-1].startswith(f"daemon.solver: {reason[:10]}")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("where", "number", "when"),
    [
        pytest.param("daemon.solver.journal:Journal.append", 1, "before", marks=pytest.mark.long),
        ("daemon.solver.journal:Journal.append", 3, "after"),
        ("daemon.solver.update:Learner._backward", 2, "before"),
        pytest.param("torch.optim:AdamW.step", 4, "after", marks=pytest.mark.long),
        pytest.param("daemon.adapters.directory:_write", 2, "after", marks=pytest.mark.long),
        ("daemon.solver.lora:write_directory", 1, "before"),
        pytest.param("daemon.solver.lora:write_directory", 1, "after", marks=pytest.mark.long),
    ],
)
def test_a_killed_job_ends_with_the_same_adapter(
    where: str, number: int, when: str, whole: Done, base: Path, tmp_path: Path
) -> None:
    arguments = job(base, tmp_path)
    killed = run_forked(arguments, before=partial(die_at_call, where, number, when))
    assert killed.code == -signal.SIGKILL, killed.complaint
    resumed = run_forked(arguments)
    assert resumed.code == 0, resumed.complaint
    assert resumed.last["sha256"] == whole.last["sha256"]
    assert resumed.last["steps"] == whole.last["steps"]
    assert resumed.last["rollouts"] == whole.last["rollouts"]
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == ["adapter", "lock", "rollouts.jsonl"]


def die_at_append(packages: str, number: int) -> None:
    """Make the job load these packages too, and die after it stored a batch."""
    sys.path.append(packages)
    die_at_call("daemon.solver.journal:Journal.append", number, "after")


@pytest.mark.long
@pytest.mark.faults
def test_every_update_of_a_killed_job_is_in_its_tracker_once(
    whole: Done, base: Path, tmp_path: Path
) -> None:
    library = interpreter("trackio==0.43.0", *ours("pydantic")).parents[1] / "lib"
    (packages,) = library.glob("python*/site-packages")
    arguments = job(base, tmp_path, tracker="trackio:letters")
    for number in (3, 1000):
        done = run_forked(
            arguments,
            before=partial(die_at_append, str(packages), number),
            variables={"TRACKIO_DIR": str(tmp_path / "trackio")},
        )
    assert done.code == 0, done.complaint
    (file,) = (tmp_path / "trackio").glob("letters*.db")
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
    assert [step for step, _ in rows] == list(range(1, 9))
    losses = [json.loads(metrics).get("metrics/loss") for _, metrics in rows]
    assert losses == [line["metrics"].get("loss") for line in whole.updates]


@pytest.mark.faults
def test_sigterm_ends_a_job_that_the_same_command_finishes(
    whole: Done, base: Path, tmp_path: Path
) -> None:
    arguments = job(base, tmp_path)
    with ForkedJob(arguments) as running:
        running.wait_for_update()
        running.send_signal(signal.SIGTERM)
        done = running.wait()
    assert done.code == 1
    assert done.last["outcome"] == "failed"
    assert "run the same command to go on" in done.last["reason"]
    resumed = run_forked(arguments)
    assert resumed.last["sha256"] == whole.last["sha256"]


@pytest.mark.faults
def test_a_disk_that_refuses_a_batch_ends_the_job_and_not_the_journal(
    whole: Done, base: Path, tmp_path: Path
) -> None:
    arguments = job(base, tmp_path)
    journal = Path(whole.last["adapter"]).parent / "rollouts.jsonl"
    refused = run_forked(arguments, file_size=journal.stat().st_size // 2)
    assert refused.code == 1
    assert refused.last["outcome"] == "failed"
    assert "did not take" in refused.last["reason"]
    assert "see to the disk" in refused.last["reason"]
    assert not (tmp_path / "out" / "adapter").exists()
    resumed = run_forked(arguments)
    assert resumed.code == 0
    assert resumed.last["sha256"] == whole.last["sha256"]


@pytest.mark.faults
def test_a_disk_that_refuses_the_adapter_leaves_nothing_of_it(base: Path, tmp_path: Path) -> None:
    large = {"lora": {"rank": 16}, "sampler": {"groups": 4, "size": 4, "rollouts": 16}}
    arguments = job(base, tmp_path, **large)
    refused = run_forked(arguments, file_size=48 * 1024)
    assert refused.code == 1
    assert "could not be written" in refused.last["reason"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["lock", "rollouts.jsonl"]
    assert run_forked(arguments).code == 0


@pytest.mark.faults
def test_a_second_process_in_the_same_directory_is_turned_away(base: Path, tmp_path: Path) -> None:
    arguments = job(base, tmp_path)
    with ForkedJob(arguments) as first:
        first.wait_for_update()
        first.send_signal(signal.SIGSTOP)
        second = run_forked(arguments)
        first.send_signal(signal.SIGCONT)
        done = first.wait()
    assert second.code == 1
    assert "another process works in" in second.last["reason"]
    assert done.code == 0


def test_heartbeats_come_while_rollouts_are_played(
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("daemon.solver.__main__.HEARTBEAT_SECONDS", 0.02)
    sampler = {"groups": 64, "size": 16, "rollouts": 1024, "max_tokens": 48}
    assert main(job(base, tmp_path, sampler=sampler)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    beats = [line["heartbeat"] for line in lines if "heartbeat" in line]
    playing = [beat["rollouts"] for beat in beats if beat["phase"] == "rollouts"]
    assert any(0 < count < 1024 for count in playing)
    assert playing == sorted(playing)


def spread(arguments: list[str]) -> list[str]:
    """The command in two processes."""
    return [*TORCHRUN, "-m", "daemon.solver", *arguments]


@contextmanager
def two_forks(arguments: list[str], before: Action | None = None) -> Iterator[list[ForkedJob]]:
    """The job in two forks that find each other as the processes of torchrun do."""
    port = str(find_ports(1)[0])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with (
        ForkedJob(arguments, before=before, variables={**world, "RANK": "0"}) as leader,
        ForkedJob(arguments, before=before, variables={**world, "RANK": "1"}) as follower,
    ):
        yield [leader, follower]


def test_two_processes_make_the_job_of_one(whole: Done, base: Path, tmp_path: Path) -> None:
    done = ended(spread(job(base, tmp_path)))
    assert done.code == 0, done.complaint
    assert (done.last["steps"], done.last["rollouts"]) == (whole.last["steps"], 128)
    assert len(done.updates) == len(whole.updates), "one of them speaks"
    for found, wanted in zip(done.updates, whole.updates, strict=True):
        # Sums of other parts round otherwise, and the rollouts after them see that.
        assert found["metrics"] == pytest.approx(wanted["metrics"], abs=1e-4)
    adapters = [load_file(Path(one.last["adapter"]) / WEIGHTS) for one in (done, whole)]
    for name, weight in adapters[1].items():
        torch.testing.assert_close(adapters[0][name], weight, atol=1e-4, rtol=0)


@pytest.mark.long
def test_a_warm_start_is_every_processs(base: Path, tmp_path: Path) -> None:
    pools = [
        {
            "name": "word",
            "tasks": letters.ids("spell", 0, 20),
            "references": letters.ids("spell", 50, 8),
        }
    ]
    warm = {"mode": "always", "sft": {"epochs": 4, "optimizer": {"lr": 0.02}}}
    arguments = job(base, tmp_path / "two", pools=pools, warm_start=warm)
    two = ended(spread(arguments))
    assert two.code == 0, two.complaint
    one = run_forked(job(base, tmp_path / "one", pools=pools, warm_start=warm))
    assert (two.last["steps"], two.last["rollouts"]) == (one.last["steps"], one.last["rollouts"])
    assert [line["metrics"]["loss"] for line in two.updates] == pytest.approx(
        [line["metrics"]["loss"] for line in one.updates], abs=1e-4
    )


def test_a_job_that_cannot_begin_ends_all_processes(base: Path, tmp_path: Path) -> None:
    with two_forks(job(base, tmp_path, checkpoint="nowhere")) as forks:
        leader, follower = (fork.wait() for fork in forks)
    assert (leader.code, follower.code) == (1, 1)
    assert "nowhere holds no checkpoint" in leader.last["reason"]
    said = leader.complaint + follower.complaint
    assert said.count("daemon.solver: nowhere holds no checkpoint") == 1


@pytest.mark.long
@pytest.mark.faults
def test_sigterm_ends_all_processes_and_the_same_command_goes_on(
    whole: Done, base: Path, tmp_path: Path
) -> None:
    arguments = job(base, tmp_path)
    with subprocess.Popen(
        spread(arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        while "metrics" not in running.stdout.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        rest, _ = running.communicate(timeout=240)
    assert running.returncode != 0
    assert "run the same command to go on" in json.loads(rest.splitlines()[-1])["reason"]
    resumed = run_forked(arguments)
    assert (resumed.code, resumed.last["steps"]) == (0, whole.last["steps"])


def die_in_third_update() -> None:
    """Make the second process end in its third exchange of gradients."""
    calls: list[None] = []

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        def dying(parameters: Any) -> None:
            calls.append(None)
            if len(calls) == 3 and os.environ["RANK"] == "1":
                os._exit(9)
            original(parameters)

        return dying

    replace_call("daemon.solver.parallel:add_gradients", change)


@pytest.mark.faults
def test_a_process_that_dies_in_an_update_ends_the_job_with_a_reason(
    whole: Done, base: Path, tmp_path: Path
) -> None:
    arguments = job(base, tmp_path)
    with two_forks(arguments, die_in_third_update) as (leader, _):
        done = leader.wait()
    assert (done.code, done.last["outcome"]) == (1, "failed")
    assert "another process of this job ended before its time" in done.last["reason"]
    resumed = run_forked(arguments)
    assert (resumed.code, resumed.last["steps"]) == (0, whole.last["steps"])
