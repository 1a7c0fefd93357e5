"""A step spread over two processes is the step of one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from daemon.solver.algorithm import Algorithm, KlConfig, LossConfig, TisConfig
from daemon.solver.trajectory import Trajectory
from tests.daemon.solver.test_update import adapter, learner, weights
from tests.daemon.solver.tiny import groups

PROGRAM = """
import json, sys
import torch
from tests.daemon.solver.test_parallel import run

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2
)
print(json.dumps(run()))
torch.distributed.destroy_process_group()
"""


def run() -> list[object]:
    """Two steps: weights and figures after them."""
    kl, tis = KlConfig(beta=0.05), TisConfig(mode="truncate")
    one = learner(Algorithm(mini_batches=2, epochs=2, loss=LossConfig(kl=kl, tis=tis)))
    figures = [one.step(made).model_dump() for made in batches()]
    return [weights(one.model).tolist(), figures]


def batches() -> list[list[Trajectory]]:
    """The second one has fewer rows than processes in a mini-batch."""
    return [groups(1), groups(2, count=1, size=2)]


@pytest.mark.processes
@pytest.mark.processes
def test_two_processes_make_the_step_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "rendezvous")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ends = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    first, second = (json.loads(out) for out, _ in ends)
    assert first == second
    expected_weights, expected_figures = run()
    torch.testing.assert_close(
        torch.tensor(first[0]), torch.tensor(expected_weights), atol=1e-6, rtol=0
    )
    for found, expected in zip(first[1], expected_figures, strict=True):  # type: ignore[call-overload]
        assert found == pytest.approx(expected, abs=1e-6)
    assert not torch.equal(torch.tensor(first[0]), weights(adapter()))
