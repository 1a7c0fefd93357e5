"""General RL beside the cycle's job: the same learner, spec and budget, on tasks of the traffic.

    adapter = train(place, job, told)

What differs from the cycle's job is which tasks are drawn, and nothing else; it is for comparison
alone and never serves. Killed and run again it goes on from its journal, as any job does.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from consumers.reads.learning import JobRow
from daemon.adapters.adoption import adopt
from daemon.evaluation.trial import Adapter
from daemon.proposer.buffer import TRAFFIC
from envs.shop.environment import Shop
from events.envelope import derive_id
from events.errors import KintsugiError
from events.jobs import JobSpec, TaskPool
from ops.demo.place import MIX, ROOT, Place
from ops.demo.watch import Point, curve

FIRST_TASK: Final = (1 << 27) + (1 << 26)
"""Seed of its first task: neither customers nor held-out tasks have them."""
_LOOK_SECONDS: Final = 0.5


class TrainingError(KintsugiError):
    """The learner ended without an adapter."""


def folder_of(place: Place) -> Path:
    """Where it leaves what it makes, laid out as a job's."""
    return place.home / "general"


def spec_of(job: JobRow) -> JobSpec:
    """The cycle's spec over a pool of tasks as customers bring them, a new one for every group."""
    sampler = job.spec.sampler
    count = max(sampler.groups, sampler.rollouts // sampler.size)
    tasks = tuple(task.id for task in islice(Shop().mixture(MIX, 1, FIRST_TASK), count))
    return job.spec.model_copy(
        update={
            "job": derive_id(job.job, "general"),
            "pools": (TaskPool(name=TRAFFIC, share=1.0, tasks=tasks),),
            "warm_start": None,
        }
    )


def train(place: Place, job: JobRow, on_progress: Callable[[list[Point]], None]) -> Adapter:
    """Its adapter; `told` hears the curve. Raises TrainingError."""
    folder = folder_of(place)
    attempts = folder / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(spec_of(job).model_dump_json(indent=1))
    number = len(list(attempts.glob("*.out"))) + 1
    with (
        (attempts / f"{number}.out").open("wb") as output,
        (attempts / f"{number}.err").open("wb") as complaints,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "daemon.solver", str(folder / "job.json"),
             "--out", str(folder / "out")],
            cwd=ROOT, env=place.variables, stdout=output, stderr=complaints,
        )  # fmt: skip
    try:
        while process.poll() is None:
            on_progress(list(curve(folder)))
            time.sleep(_LOOK_SECONDS)
    finally:
        process.terminate()
        process.wait()
    if process.returncode != 0:
        raise TrainingError(f"general RL left no adapter; see {attempts / f'{number}.err'}")
    adapter = adopt(
        folder / "out" / "adapter", folder / "adapters", Path(job.spec.checkpoint), kind="general"
    )
    return Adapter(name=adapter.name, folder=str(adapter.folder), sha256=adapter.sha256)
