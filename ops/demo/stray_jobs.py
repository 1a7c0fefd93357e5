"""The end of jobs and trials that outlive the role `work` of a home."""

import time
from typing import TYPE_CHECKING, Final

from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import Active

if TYPE_CHECKING:
    from daemon.config.settings import Settings

_LOOK_SECONDS: Final = 0.2


def end_jobs(settings: "Settings") -> int:
    """Stop the jobs and trials that run in a home, which outlive the role `work`; how many there
    were. The next `work` goes on with them where they were."""
    ended = 0
    for root in (settings.home / "jobs", settings.home / "trials"):
        for folder in sorted(root.glob("*/attempts")):
            ended += _end_job(LocalRunner(root, command=()), folder.parent.name)
    return ended


def _end_job(runner: LocalRunner, job: str) -> bool:
    """Whether it ran."""
    ran = False
    while isinstance(runner.state(job), Active):
        ran = True
        # The first time it is asked to, and after its grace made to.
        runner.cancel(job, "everything of its place was stopped")
        time.sleep(_LOOK_SECONDS)
    return ran
