"""Failed steps and their pauses; pure, over a time that the caller passes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from daemon.serving.desired_state import Delete, Load, Step, Unload

FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(minutes=5)
"""Longest pause after a failed step; each failure doubles the pause."""


@dataclass(frozen=True, slots=True)
class _Failure:
    until: datetime
    pause: timedelta


class Backoff:
    """Steps that failed, and how long each has to wait before the next try."""

    def __init__(self) -> None:
        self._failures: dict[Step, _Failure] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def waits(self, step: Step, now: datetime) -> bool:
        """Return whether a step must still wait; False if the clock is now before its failure."""
        failure = self._failures.get(step)
        return failure is not None and failure.until - failure.pause <= now < failure.until

    def record_failure(self, step: Step, now: datetime) -> None:
        """Record a failure; each failure in a row doubles the pause."""
        last = self._failures.get(step)
        pause = FIRST_PAUSE if last is None else min(2 * last.pause, LONGEST_PAUSE)
        self._failures[step] = _Failure(now + pause, pause)

    def record_success(self, step: Step) -> None:
        """Forget a step's failures."""
        self._failures.pop(step, None)

    def keep(self, wanted: Sequence[Step], lost: Iterable[str]) -> None:
        """Forget unwanted steps, except those that unreachable replicas (URLs `lost`) may need."""
        still, unseen = set(wanted), frozenset(lost)
        self._failures = {
            step: failure
            for step, failure in self._failures.items()
            if step in still or _may_come_back(step, unseen)
        }


def _may_come_back(step: Step, unseen: frozenset[str]) -> bool:
    """Return whether a step may be wanted again once unreachable replicas answer."""
    if isinstance(step, Load | Unload):
        return step.replica in unseen
    return isinstance(step, Delete) and bool(unseen)
