"""Training jobs and trials in this process: `start` returns when they have ended.

A job that was killed is absent to the next process, which starts it anew; its journal goes on.
"""

import os
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from daemon.config.adapter_paths import AdapterPaths
from daemon.evaluation.trial import Plan, play
from daemon.jobs.runner import OUT, SPEC, Absent, Exit, Job, Result, State
from daemon.solver import job as learner
from daemon.solver.telemetry.progress import Progress
from events.jobs import JobSpec
from events.messages import StrictModel

_ENDED: Final = "ended.json"


class _Ended(StrictModel):
    seconds: float
    result: Result


class InProcessRunner:
    """Runs jobs below one folder of a home; `report` is called after each update of a training
    job."""

    hands_keys = True

    def __init__(
        self,
        paths: AdapterPaths,
        folder: str,
        report: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._root, self._report = paths.home / folder, report
        os.environ.update(paths.variables)

    def check(self) -> None:
        """It can always be used."""

    def start(self, job: Job) -> bool:
        """Run it to its end. Raises BadPlan, WrongSetting, BadAdapter and OSError for a trial."""
        began, folder = time.monotonic(), self._root / job.id
        out = folder / OUT
        out.mkdir(parents=True, exist_ok=True)
        for name, content in job.files.items():
            (out / name).write_bytes(content)
        (folder / SPEC).write_text(job.spec.model_dump_json())
        if isinstance(job.spec, Plan):
            # It says that it lives, as the process that it usually is.
            with (folder / "stdout").open("w") as stdout, redirect_stdout(stdout):
                play(job.spec, out)
            result = Result(outcome="played")
        else:
            assert isinstance(job.spec, JobSpec), "a job is a trial or a training run"
            keys = {key.id: key for key in job.keys}
            outcome = learner.run(job.spec, out, self._report, keys=keys)
            result = Result.model_validate(outcome.model_dump())
        ended = _Ended(seconds=time.monotonic() - began, result=result)
        unfinished = folder / f"tmp-{_ENDED}"
        unfinished.write_text(ended.model_dump_json())
        unfinished.replace(folder / _ENDED)
        return True

    def state(self, job: str) -> State:
        """Whether it has ended."""
        path = self._root / job / _ENDED
        if not path.exists():
            return Absent()
        ended = _Ended.model_validate_json(path.read_bytes())
        return Exit(attempts=1, barren=0, seconds=ended.seconds, result=ended.result)

    def cancel(self, job: str, reason: str) -> None:
        """Nothing runs between two calls."""

    def folder(self, job: str) -> Path:
        """Where it leaves what it makes."""
        return self._root / job

    def close(self) -> None:
        """Nothing is held."""
