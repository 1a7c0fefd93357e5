"""A step spread over two processes is the step of one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from daemon.adapters.directory import Base, Provenance
from daemon.solver.lora import save
from daemon.solver.trajectory import Trajectory
from daemon.solver.update import Learner
from events.algorithm import Algorithm, KlConfig, LossConfig, TisConfig
from tests.daemon.solver.test_update import LORA, adapter, weights
from tests.daemon.solver.tiny import ENDS, groups

PROGRAM = """
import json, sys
from pathlib import Path
import torch
from tests.daemon.solver.test_parallel import run

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2
)
print(json.dumps(run(folder / str(rank))))
torch.distributed.destroy_process_group()
"""


def run(folder: Path) -> dict[str, object]:
    """Two steps: weights, figures and the saved adapter after them."""
    model = adapter()
    kl, tis = KlConfig(beta=0.05), TisConfig(mode="truncate")
    algorithm = Algorithm(mini_batches=2, epochs=2, loss=LossConfig(kl=kl, tis=tis))
    one = Learner(model, algorithm, ENDS, micro_tokens=40)
    figures = [one.step(made).model_dump() for made in batches()]
    return {
        "weights": weights(model).tolist(),
        "figures": figures,
        "saved": save(model, folder, provenance()),
    }


def batches() -> list[list[Trajectory]]:
    """The second one has fewer rows than processes in a mini-batch."""
    return [groups(1), groups(2, count=1, size=2)]


def provenance() -> Provenance:
    base = Base(name="tiny", sha256="0" * 64)
    return Provenance(base=base, lora=LORA, seed=0, steps=2, rollouts=(), spec={})


def in_two(folder: Path) -> list[dict[str, object]]:
    """What `run` says in each of two processes."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ends = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    return [json.loads(out) for out, _ in ends]


@pytest.mark.long
@pytest.mark.processes
def test_two_processes_make_the_step_of_one(tmp_path: Path) -> None:
    first, second = in_two(tmp_path)
    expected = run(tmp_path / "alone")
    for field in ("weights", "figures", "saved"):
        assert first[field] == second[field]
    torch.testing.assert_close(
        torch.tensor(first["weights"]), torch.tensor(expected["weights"]), atol=1e-6, rtol=0
    )
    for found, wanted in zip(first["figures"], expected["figures"], strict=True):  # type: ignore[call-overload]
        assert found == pytest.approx(wanted, abs=1e-6)
    assert not torch.equal(torch.tensor(first["weights"]), weights(adapter()))
