"""Run a gate's trials, for adapters of any role. A trial outlives the worker. An interrupted
attempt is repeated, and a wrong setting makes the trial wait (gate_waits.py)."""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.reads.serving import AdapterRow
from daemon.core.decision_log import Decisions
from daemon.evaluation.gate_waits import Means, SettingFault, find_checkpoint_trouble, judge_exit
from daemon.jobs.runner import Absent, Active, Again, Exit, JobRunner, JobStartError, Over
from events.errors import KintsugiError
from events.jobs import ModelUser
from events.rollouts import clip_reason
from events.serving import AdapterMoved

if TYPE_CHECKING:
    from daemon.core.app import App


class CannotExamine(KintsugiError):
    """The candidate cannot be played, so its gate rejects it."""


class GateTrials:
    """The trials of one adapter's gate."""

    def __init__(
        self,
        app: "App",
        runner: JobRunner,
        row: AdapterRow,
        checkpoint: Path,
        user: ModelUser | None,
    ) -> None:
        """Use the agent's base model `checkpoint`, and `user` (None: the environment's own)."""
        self._app, self._runner, self._row = app, runner, row
        self._means = Means(checkpoint=str(checkpoint), user=user)

    def advance(
        self, job: str, name: str, start: Callable[[], Iterator[str]]
    ) -> Generator[str, None, bool]:
        """Start, watch or stop the trial's job; return whether the trial is over. `start` begins an
        attempt. Raises CannotExamine if it failed, and JobStartError while a setting is wrong."""
        settings = self._app.settings.jobs
        match self._runner.state(job):
            case Absent():
                yield from start()
            case Active() as running:
                late = running.seconds >= settings.minutes * 60
                if late or running.silent >= settings.heartbeat_seconds:
                    reason = "it ran too long" if late else "it said nothing for too long"
                    yield self.stop(job, name, reason)
            case Exit() as ended:
                result = self.judge_exit(job, ended)
                if isinstance(result, SettingFault):
                    if not result.is_due:
                        raise JobStartError(self.describe_wait(result.reason))
                    yield from start()
                elif isinstance(result, Again) and ended.seconds < settings.minutes * 60:
                    yield from start()
                elif isinstance(result, Again) or result.outcome != "played":
                    raise CannotExamine(f"it could not be played: {result.reason}")
                else:
                    return True
        return False

    def stop(self, job: str, name: str, reason: str) -> str:
        """Stop a trial's job and return a sentence that calls the trial `name`."""
        self._runner.cancel(job, reason)
        return f"{name} is told to stop: {reason}"

    def judge_exit(self, job: str, ended: Exit) -> Over | Again | SettingFault:
        """Return the meaning of an attempt's end: it is over, to be repeated, or waits."""
        attempts = self._app.settings.jobs.attempts
        return judge_exit(ended, self._runner.folder(job), self._means, attempts)

    def check_checkpoint(self) -> None:
        """Raise JobStartError if jobs run on this machine and it lacks the agent's checkpoint."""
        if not self._runner.hands_keys:
            return
        trouble = find_checkpoint_trouble(Path(self._means.checkpoint), self._row.alias)
        if trouble is not None:
            raise JobStartError(self.describe_wait(trouble))

    def describe_wait(self, reason: str) -> str:
        """Return the sentence that the gate waits for this reason."""
        return f"{self._row.adapter} waits: {reason}"

    def reject(self, reason: str, origin: str) -> str:
        """Append the adapter's rejection and return a sentence; `origin` names the decision. Raises
        DecisionRefusal, LogError, DatabaseUnavailable."""
        moved = AdapterMoved(
            adapter=self._row.adapter, state="rejected", reason=clip_reason(reason)
        )
        Decisions(self._app).take(moved, "rejected", self._row.cause, origin=origin)
        return f"{self._row.adapter} is rejected: {reason}"
