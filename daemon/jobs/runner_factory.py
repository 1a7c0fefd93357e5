"""Create the runners of a home's jobs, according to the setting `jobs.runner`."""

import sys
from typing import TYPE_CHECKING, Final

from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import JobRunner
from events import private

if TYPE_CHECKING:
    from daemon.config.settings import Settings

LEARNER: Final = "daemon.solver"
TRIAL: Final = "daemon.evaluation.trial"


def jobs_of(settings: "Settings") -> JobRunner:
    """Return the runner of the home's training jobs."""
    return make_runner(settings, "jobs", LEARNER)


def trials_of(settings: "Settings") -> JobRunner:
    """Return the runner of trials, in which candidates and incumbents play tasks."""
    return make_runner(settings, "trials", TRIAL)


def make_runner(settings: "Settings", folder: str, module: str) -> JobRunner:
    """Return a runner of `python -m module` for each job of a folder of the home."""
    root, slots = settings.home / folder, settings.jobs.slots
    # An engine that another process started reads the policies of a job in its folder.
    mode = private.PASSAGE if settings.training.source == "endpoint" else private.FOLDER
    if settings.jobs.runner == "local":
        return LocalRunner(
            root, slots=slots, command=(sys.executable, "-m", module), mode=mode,
            variables=settings.adapter_paths.variables,
        )  # fmt: skip
    from daemon.jobs.ray import Needs, RayRunner, cluster_of

    ray = settings.jobs.ray
    return RayRunner(
        root, cluster_of(ray), slots=slots, command=(ray.python, "-m", module),
        needs=Needs(ray.cpus, ray.gpus), mode=mode, variables=settings.adapter_paths.variables,
    )  # fmt: skip
