"""Results of the experiment on the data engine: one file for a seed's written tasks, and one for
each job that is trained on the accepted tasks of an arm."""

import time
from collections.abc import Mapping

from events.canonical import exact_json, sha256
from ops.learning.results import TimedRun
from ops.learning.run import describe_source
from ops.learning.synthesis.settings import ARMS, Settings
from ops.learning.synthesis.writing import Figures, write_tasks


class WritingRun(TimedRun):
    """What all arms of a seed wrote."""

    arms: Mapping[str, Figures]
    """By the arm's name."""
    accepted: Mapping[str, str]
    """Arm -> sha256 of the ids of its accepted tasks, in their order."""


def name_run(seed: int, *, development: bool) -> str:
    """Return the name of a seed's file."""
    return f"{'development' if development else 'seed'}{seed}"


def run_writing(seed: int, settings: Settings, *, development: bool) -> WritingRun:
    """Write the tasks of all arms of a seed. Raises NoPlans."""
    began, worked = time.monotonic(), time.process_time()
    name = name_run(seed, development=development)
    figures: dict[str, Figures] = {}
    accepted: dict[str, str] = {}
    for arm in ARMS:
        writing = write_tasks(arm, name, seed, settings)
        figures[arm.name] = writing.figures
        accepted[arm.name] = sha256(exact_json(list(writing.accepted)))
    return WritingRun(
        seed=seed,
        development=development,
        source=describe_source(settings.checkpoint, settings.digest),
        arms=figures,
        accepted=accepted,
        seconds=time.monotonic() - began,
        processor_seconds=time.process_time() - worked,
    )
