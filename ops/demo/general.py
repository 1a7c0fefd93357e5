"""General RL for comparison: the cycle's learner, spec and budget, on tasks as in the traffic. Its
tasks are the only difference to the cycle's job. For several cycles, it begins with the base and
gets as many rollouts as all their jobs. Its adapter never answers clients. After a kill it
continues from its journal.
"""

import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from consumers.reads.learning import JobRow
from daemon.adapters.adoption import adopt
from daemon.evaluation.players import Adapter
from daemon.proposer.buffer import TRAFFIC
from envs.shop.environment import Shop
from events.envelope import derive_id
from events.errors import KintsugiError
from events.jobs import JobSpec, TaskPool
from ops.demo.owned_process import owned_process
from ops.demo.place import Place
from ops.demo.watch import Point, curve

FIRST_TASK: Final = (1 << 27) + (1 << 26)
"""Seed of its first task; customers and held-out tasks have other seeds."""
_LOOK_SECONDS: Final = 0.5


class TrainingError(KintsugiError):
    """The learner ended without an adapter."""


def folder_of(place: Place) -> Path:
    """Return the folder of general RL's output, which has the layout of a job's folder."""
    return place.home / "general"


def spec_of(job: JobRow, mix: Mapping[str, float], rollouts: int) -> JobSpec:
    """Return a cycle job's spec, but from the base and on new tasks of the customers' mixture."""
    sampler = job.spec.sampler.model_copy(update={"rollouts": rollouts})
    count = max(sampler.groups, sampler.rollouts // sampler.size)
    tasks = tuple(task.id for task in islice(Shop().mixture(mix, 1, FIRST_TASK), count))
    return job.spec.model_copy(
        update={
            "job": derive_id(job.job, "general"),
            "parent": None,
            "warm_start": None,
            "sampler": sampler,
            "pools": (TaskPool(name=TRAFFIC, share=1.0, tasks=tasks),),
        }
    )


def train(
    place: Place, job: JobRow, rollouts: int, on_progress: Callable[[list[Point]], None]
) -> Adapter:
    """Run a job like `job`, but with `rollouts` rollouts, and return its adapter. `on_progress`
    gets the training curve. Raise TrainingError."""
    folder, spec = folder_of(place), spec_of(job, place.mix, rollouts)
    attempts = folder / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(spec.model_dump_json(indent=1))
    number = len(list(attempts.glob("*.out"))) + 1
    arguments = ("daemon.solver", str(folder / "job.json"), "--out", str(folder / "out"))
    with (
        (attempts / f"{number}.out").open("wb") as output,
        (attempts / f"{number}.err").open("wb") as complaints,
        owned_process(arguments, place, folder / "lock", output, complaints) as process,
    ):
        while process.poll() is None:
            on_progress(list(curve(folder)))
            time.sleep(_LOOK_SECONDS)
    if process.returncode != 0:
        raise TrainingError(f"the general job left no adapter; see {attempts / f'{number}.err'}")
    adapter = adopt(
        folder / "out" / "adapter", folder / "adapters", Path(spec.checkpoint), kind="general"
    )
    return Adapter(name=adapter.name, folder=str(adapter.folder), sha256=adapter.sha256)
