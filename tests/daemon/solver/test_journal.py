"""Rollouts are on disk before they are used, and a killed job ends with the same adapter."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.adapters.directory import Base, Provenance
from daemon.config.presets import preset
from daemon.engine.identity import weights_sha256
from daemon.solver.journal import BadJournal, Journal, rename
from daemon.solver.lora import (
    attach,
    save,
)
from daemon.solver.telemetry.metrics import Guard
from daemon.solver.update import Learner
from events.jobs import Limits, LoraSettings, OptimizerSettings
from tests.daemon.solver.test_learning import LEVERS, pull
from tests.daemon.solver.tiny import groups, tiny_model

SPEC = "a" * 64
STEPS = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "rollouts.jsonl"


def test_what_was_appended_is_read_back_exactly(path: Path) -> None:
    batches = [tuple(groups(seed)) for seed in range(3)]
    # What the learner will refuse is kept too, to the last bit.
    strange = replace(
        batches[0][0].turns[0], logprobs=(float("-inf"), 0.1 + 0.2), completion_ids=(1, 2)
    )
    batches[2] = (replace(batches[2][0], turns=(strange,), success=None, reward=None),)
    journal = Journal(path, SPEC)
    for batch in batches:
        journal.append(batch)
    journal.close()
    again = Journal(path, SPEC)
    assert again.batches == batches
    again.close()


def test_a_journal_is_renamed_with_its_batches_and_twice_is_as_once(path: Path) -> None:
    other = "b" * 64
    rename(path, SPEC, other)
    assert not path.exists()
    journal = Journal(path, SPEC)
    journal.append(tuple(groups(0)))
    journal.close()
    with pytest.raises(BadJournal, match="another spec"):
        rename(path, "c" * 64, other)
    for _ in range(2):
        rename(path, SPEC, other)
        again = Journal(path, other)
        assert again.batches == journal.batches
        again.close()
    with pytest.raises(BadJournal, match="another spec"):
        Journal(path, SPEC)


def test_a_batch_that_was_half_written_is_no_batch(path: Path) -> None:
    journal = Journal(path, SPEC)
    journal.append(tuple(groups(0)))
    journal.close()
    whole = path.read_bytes()
    for cut in (1, 10, len(whole) // 3):
        path.write_bytes(whole + whole.splitlines()[1][:cut])
        again = Journal(path, SPEC)
        assert len(again.batches) == 1
        again.append(tuple(groups(1)))
        again.close()
        third = Journal(path, SPEC)
        assert third.batches == [tuple(groups(0)), tuple(groups(1))]
        third.close()


def test_a_journal_of_another_spec_is_refused(path: Path) -> None:
    Journal(path, SPEC).close()
    with pytest.raises(BadJournal, match="rollouts of another spec"):
        Journal(path, "b" * 64)


@pytest.mark.parametrize(
    ("line", "names"), [(0, "is no journal"), (1, "batch 0: .*damaged"), (2, "batch 1")]
)
def test_a_damaged_journal_is_refused_and_not_cut(path: Path, line: int, names: str) -> None:
    journal = Journal(path, SPEC)
    for seed in range(2):
        journal.append(tuple(groups(seed)))
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = b"?" + lines[line][1:]
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadJournal, match=names):
        Journal(path, SPEC)
    assert path.read_bytes() == b"".join(lines)


FULL = """
import resource, sys
from pathlib import Path
from daemon.solver.journal import Journal, JournalWriteError
from tests.daemon.solver.tiny import groups

path = Path(sys.argv[1])
journal = Journal(path, "a" * 64)
journal.append(tuple(groups(0)))
before = path.read_bytes()
limit = len(before) + 500
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    journal.append(tuple(groups(1)))
except JournalWriteError as error:
    print(error)
assert path.read_bytes() == before
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append(tuple(groups(2)))
journal.close()
"""


@pytest.mark.processes
@pytest.mark.processes
def test_a_full_disk_costs_the_batch_and_not_the_journal(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "File too large; see to the disk" in done.stdout
    again = Journal(path, SPEC)
    assert again.batches == [tuple(groups(0)), tuple(groups(2))]
    again.close()


def train(folder: Path) -> str:
    """A whole job on the bandit, resumable; returns the sha256 of its adapter."""
    base = tiny_model()
    model = attach(base, LoraSettings(), seed=0)
    learner = Learner(model, preset("sentinel"), LEVERS, OptimizerSettings(lr=0.01))
    # A random model that learns a bandit goes far from where it began.
    journal, guard = Journal(folder / "rollouts.jsonl", SPEC), Guard(limits=Limits(kl=None))
    for step in range(STEPS):
        if step == len(journal.batches):
            journal.append(tuple(pull(model, list(range(4, 12)), 8, seed=step)))
            print(step, flush=True)
        guard = guard.after(learner.step(journal.batches[step]))
    journal.close()
    rollouts = tuple(item.rollout for batch in journal.batches for item in batch)
    provenance = Provenance(
        base=Base(name="tiny", sha256=weights_sha256(base)),
        lora=LoraSettings(),
        seed=0,
        steps=learner.steps,
        rollouts=rollouts,
        spec={},
    )
    return save(model, folder / "adapter", provenance)


PROGRAM = """
import sys
from pathlib import Path
import torch
from tests.daemon.solver.test_journal import train

torch.set_num_threads(1)
print(train(Path(sys.argv[1])), flush=True)
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.processes
@pytest.mark.faults
def test_a_job_killed_in_the_middle_ends_with_the_same_adapter(tmp_path: Path) -> None:
    whole, _ = start(tmp_path / "whole").communicate(timeout=120)
    killed = start(tmp_path / "killed")
    assert killed.stdout is not None
    for _ in range(STEPS // 2):
        killed.stdout.readline()
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    left = Journal(tmp_path / "killed" / "rollouts.jsonl", SPEC)
    left.close()
    done = len(left.batches)
    assert STEPS // 2 <= done < STEPS
    resumed, _ = start(tmp_path / "killed").communicate(timeout=120)
    assert len(resumed.splitlines()) == STEPS - done + 1
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]
    first, second = (
        json.loads((tmp_path / name / "adapter" / "provenance.json").read_text())
        for name in ("whole", "killed")
    )
    assert first == second
