"""A job's outcome, and its activity while it runs. This module does not need torch."""

from dataclasses import dataclass
from typing import Final, Literal

from events.errors import KintsugiError
from events.json_text.guard import replace_half_pairs
from events.messages import StrictModel

_GO_ON: Final = "run the same command to go on"
"""End of a reason after which the job may be resumed (daemon/jobs/runner.py)."""

_MOST_REASON: Final = 4_000
"""Maximum characters of a reason: a runner reads the outcome's line from a file's last 64 KiB."""
_MOST_END: Final = 400
"""Characters kept from the end of a longer reason, where the remedy is."""


@dataclass(slots=True)
class Activity:
    """The present activity of a job, to be read from other threads."""

    phase: str = "starting"
    rollouts: int = 0
    """Rollouts used of the budget, including those of an unfinished batch."""
    steps: int = 0


class Outcome(StrictModel):
    """End of a job; the last line of its output."""

    outcome: Literal["trained", "competence_gap", "failed"]
    adapter: str | None = None
    sha256: str | None = None
    steps: int
    """Number of optimizer steps, including supervised ones."""
    rollouts: int
    reason: str | None = None


def make_failure(error: BaseException, activity: Activity) -> Outcome:
    """Return the outcome of a job that an error ended, with the error as one line. If it is no
    KintsugiError (a bug, too little memory), its type is named and the job may be tried again."""
    reason = " ".join(str(error).split())
    if not isinstance(error, KintsugiError | OSError):
        name = type(error).__name__
        reason = f"{name}: {_shorten(reason)}" if reason else name
        reason = f"{reason}; its log has the traceback: correct what it names, or {_GO_ON}"
    return Outcome(
        outcome="failed",
        steps=activity.steps,
        rollouts=activity.rollouts,
        reason=replace_half_pairs(_shorten(reason)),
    )


def _shorten(reason: str) -> str:
    if len(reason) <= _MOST_REASON:
        return reason
    return f"{reason[: _MOST_REASON - _MOST_END]}...{reason[-_MOST_END:]}"
