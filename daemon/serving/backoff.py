"""Failed steps, and until when they wait: pure, over the clock that it is given.

A failed step is put off, twice as long after each failure, up to five minutes. Memory is bounded by
the wanted steps: those of an adapter that is gone are forgotten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from daemon.serving.desired_state import Delete, Load, Step, Unload

FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(minutes=5)
"""Longest pause before a failed step is tried again."""


@dataclass(frozen=True, slots=True)
class _Failure:
    until: datetime
    pause: timedelta


class Backoff:
    """The failed steps and their pauses."""

    def __init__(self) -> None:
        self._failures: dict[Step, _Failure] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def waits(self, step: Step, now: datetime) -> bool:
        """Whether it is too early for another try. A step does not wait if the clock was set back
        to before its failure."""
        failure = self._failures.get(step)
        return failure is not None and failure.until - failure.pause <= now < failure.until

    def record_failure(self, step: Step, now: datetime) -> None:
        """Record a failure; each failure in a row doubles the pause."""
        last = self._failures.get(step)
        pause = FIRST_PAUSE if last is None else min(2 * last.pause, LONGEST_PAUSE)
        self._failures[step] = _Failure(now + pause, pause)

    def record_success(self, step: Step) -> None:
        """Record a success."""
        self._failures.pop(step, None)

    def keep(self, wanted: Sequence[Step], lost: Iterable[str]) -> None:
        """Forget the steps that are no longer wanted. What an unreachable replica (`lost`: their
        URLs) lacks is not known and no file is deleted then, so such steps are kept."""
        still, unseen = set(wanted), frozenset(lost)
        self._failures = {
            step: failure
            for step, failure in self._failures.items()
            if step in still or _may_come_back(step, unseen)
        }


def _may_come_back(step: Step, unseen: frozenset[str]) -> bool:
    """Whether a step may be wanted again once the unreachable replicas are back."""
    if isinstance(step, Load | Unload):
        return step.replica in unseen
    return isinstance(step, Delete) and bool(unseen)
