"""A training run as the daemon sees it, on this machine or another.

    HOME/jobs/ID/job.json          the spec
    HOME/jobs/ID/out/              the learner's: journal, adapter (daemon/solver/job.py)
    HOME/jobs/ID/attempts/N.*      output and end of each attempt (attempts.py)

Guarantee: a job runs once, however often several processes call a runner, also after kills.
`verdict` decides whether another attempt follows. A `competence_gap` and a failure that the learner
names are final, because it would repeat. An attempt that was cut short, or reports that it can go
on, is repeated until a number of attempts in a row brought no rollout.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from pydantic import ConfigDict, ValidationError

from events.errors import KintsugiError
from events.messages import StrictModel
from events.privacy.sealing import Key

SPEC: Final = "job.json"
OUT: Final = "out"
JOURNAL: Final = "rollouts.jsonl"
"""File name of the learner's journal in `OUT`; the file grows with every batch."""
LEARNT: Final = ("adapter", "checkpoints")
"""Names of the folders in `OUT` with the learner's results."""
GO_ON: Final = "run the same command to go on"
"""End of a reason after which the job may be resumed, such as a signal or a full disk."""

CHECKPOINT_SETTING: Final = "agents.checkpoint"
USER_TOKENS_SETTING: Final = "models.user.max_tokens"
"""Settings that may end a trial (`Result.setting`)."""

WRONG_USAGE: Final = 2
"""Exit code of the learner for a spec that it cannot read."""
_KILLED: Final = 137
"""Exit code that a shell reports for signal 9."""
_ABORTED: Final = 134
"""Exit code that a shell reports for signal 6: a library aborts after a failed allocation."""


class JobStartError(KintsugiError):
    """An attempt could not be started; the next look tries again."""


class RunnerUnavailable(KintsugiError):
    """The state of jobs cannot be read. Jobs continue, and the next look asks again."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job to run."""

    id: str
    spec: StrictModel
    traceparent: str | None = None
    """Trace context of the job's span, for the environment variable TRACEPARENT."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Name -> content of files that are put into `OUT` before the job begins."""
    keys: tuple[Key, ...] = ()
    """Keys of persons whose tasks the job plays; passed in memory and never written."""
    replaces_spec: bool = False
    """Whether the next attempt uses this spec even if earlier attempts had another."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the job, beside those of the starting process."""
        return {} if self.traceparent is None else {"TRACEPARENT": self.traceparent}


class Result(StrictModel):
    """The last line of a job (daemon/solver/telemetry/outcome.py) or of a trial (`played`)."""

    # A later version may add fields.
    model_config = ConfigDict(frozen=True, extra="ignore")

    outcome: Literal["trained", "competence_gap", "failed", "played"]
    adapter: str | None = None
    sha256: str | None = None
    steps: int = 0
    rollouts: int = 0
    reason: str | None = None
    setting: str | None = None
    """Setting that caused the failure, so that it tells nothing about the players; else None."""


@dataclass(frozen=True, slots=True)
class Absent:
    """State: the job was never begun."""


@dataclass(frozen=True, slots=True)
class Active:
    """State: an attempt is running or waiting."""

    attempt: int
    """Number of the attempt, from 1."""
    seconds: float
    silent: float
    """Seconds since the attempt's last output; it writes every two seconds."""
    keyids: tuple[str, ...] = ()
    """Ids of the keys that were passed to the attempt."""


@dataclass(frozen=True, slots=True)
class Exit:
    """State: the last attempt has ended."""

    attempts: int
    barren: int
    """How many attempts in a row, up to the last, brought no rollout."""
    seconds: float
    result: Result | None
    """The job's own result; None if the attempt was cut short."""
    code: int | None = None
    """Exit code; None if it was not recorded."""
    stopped: str | None = None
    """Reason for which the attempt was told to stop; None if it was not."""
    complaint: str = ""
    """Last line of the attempt's stderr."""
    full: bool = False
    """Whether the disk with the job's folder is full."""
    keyids: tuple[str, ...] = ()
    """Ids of the keys that were passed to the attempt."""


State = Absent | Active | Exit


class JobRunner(Protocol):
    """Runs jobs, on this machine or on others."""

    hands_keys: bool
    """Whether the runner can pass keys from process to process in memory alone."""

    def check(self) -> None:
        """Raise RunnerUnavailable if the runner cannot be used, as `start` and others may."""

    def start(self, job: Job) -> bool:
        """Begin an attempt unless one runs; return False without a slot. Raises JobStartError."""

    def state(self, job: str) -> State:
        """Return the state of a job."""

    def cancel(self, job: str, reason: str) -> None:
        """Ask a running job to stop, and kill it at a later call. `reason` is stored."""

    def folder(self, job: str) -> Path:
        """Return the folder of a job's output."""

    def close(self) -> None:
        """Release resources; jobs go on."""


@dataclass(frozen=True, slots=True)
class Over:
    """Verdict: no further attempt follows."""

    outcome: Literal["trained", "competence_gap", "failed", "played"]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """Verdict: another attempt continues the job."""

    reason: str


def verdict(ended: Exit, attempts: int) -> Over | Again:
    """Decide what follows an ended attempt; at most `attempts` in a row may bring no rollout."""
    result = ended.result
    if result is not None and not _cut_short(result, ended.full):
        return Over(result.outcome, result.reason or "")
    reason = _trouble(ended)
    if ended.code == WRONG_USAGE:
        return Over("failed", reason)
    if ended.barren >= attempts:
        return Over("failed", f"{reason}; {ended.barren} attempts in a row brought no rollout")
    return Again(reason)


def _cut_short(result: Result, full: bool) -> bool:
    return result.outcome == "failed" and (full or (result.reason or "").endswith(GO_ON))


def _trouble(ended: Exit) -> str:
    if ended.stopped is not None:
        return ended.stopped or "it was told to stop"
    complaint = ended.complaint or (ended.result and ended.result.reason)
    suffix = f": {complaint}" if complaint else ""
    if ended.full:
        return f"the disk of the job is full{suffix}"
    if ended.result is not None:
        return ended.result.reason or "it was stopped"
    if ended.code == _KILLED:
        return "it was killed (signal 9): memory ran out, or somebody killed it"
    if ended.code == _ABORTED:
        return f"it was aborted (signal 6): memory was refused, or a library gave up{suffix}"
    if ended.code is None:
        return "it ended with whatever ran it: the machine, the container or its session was killed"
    if ended.code > 128:
        return f"it was killed (signal {ended.code - 128}){suffix}"
    return f"it ended with exit code {ended.code}{suffix or ' and said nothing'}"


def result_of(lines: Iterable[bytes]) -> Result | None:
    """Return the result in the learner's last line; None if that line is no result."""
    last = next(iter(reversed(list(lines))), b"")
    try:
        return Result.model_validate_json(last)
    except ValidationError:
        # The last line is a heartbeat or an update, so the attempt was cut short.
        return None
