"""The jobs: one for each environment, as the loop makes it, and one of these in all of them.

All jobs of a seed have the same tasks, and the joint ones the budgets of the others together.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from events.jobs import JobSpec, TaskPool
from ops.learning.environments.settings import ENVIRONMENTS, Settings
from ops.learning.environments.shops import find_place
from ops.learning.screen.plan import Recorder
from ops.learning.screen.settings import CONFIGURATIONS
from ops.learning.seeds import Seeds
from ops.learning.user_faults.settings import LOOP


def build_specs(settings: Settings, run: int, seeds: Seeds, folder: Path) -> dict[str, JobSpec]:
    """Return the job of each environment, by its name: what the loop makes of the base's traffic
    there. Raises NoJob."""
    specs = {}
    for name in ENVIRONMENTS:
        recorder = Recorder(settings.build_recording(name), run, seeds, find_place(name))
        specs[name] = recorder.build_spec(CONFIGURATIONS[LOOP], folder / name)
    return specs


def join_specs(specs: Mapping[str, JobSpec], environments: Literal["mixed", "apart"]) -> JobSpec:
    """Return one job in all environments, with the pools and the budgets of the jobs of each; every
    environment begins with the same share of the groups."""
    first = next(iter(specs.values()))
    sampler = first.sampler.model_copy(
        update={
            "rollouts": sum(spec.sampler.rollouts for spec in specs.values()),
            "environments": environments,
        }
    )
    changes = {
        "job": f"{first.job}-{environments}",
        "pools": tuple(
            pool for name, spec in specs.items() for pool in _move_pools(spec, name, first)
        ),
        "sampler": sampler,
    }
    return JobSpec.model_validate(first.model_copy(update=changes).model_dump())


def _move_pools(spec: JobSpec, name: str, to: JobSpec) -> list[TaskPool]:
    """Return the pools of a job as those of another one, with shares that sum to 1."""
    total = sum(pool.share for pool in spec.pools)
    place = None if spec.environment == to.environment else spec.environment
    return [
        pool.model_copy(
            update={
                "name": f"{name}:{pool.name}",
                "share": pool.share / total,
                "environment": place,
            }
        )
        for pool in spec.pools
    ]
