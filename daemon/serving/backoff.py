"""Steps that failed, and until when they wait: pure, over the clock that it is given.

A step that fails is put off, twice as long after each time, up to five minutes. What is remembered
is bounded by what is wanted: whoever works for months forgets the step of an adapter that is gone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from daemon.serving.desired_state import Delete, Load, Step, Unload

FIRST_PAUSE: Final = timedelta(seconds=5)
LONGEST_PAUSE: Final = timedelta(minutes=5)
"""Until a step that failed is tried again."""


@dataclass(frozen=True, slots=True)
class _Failure:
    until: datetime
    pause: timedelta


class Backoff:
    """What failed last time."""

    def __init__(self) -> None:
        self._failures: dict[Step, _Failure] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def waits(self, step: Step, now: datetime) -> bool:
        """Whether it is too early for another try. A clock that was set back before the failure
        makes nobody wait."""
        failure = self._failures.get(step)
        return failure is not None and failure.until - failure.pause <= now < failure.until

    def record_failure(self, step: Step, now: datetime) -> None:
        """It failed, perhaps not for the first time."""
        last = self._failures.get(step)
        pause = FIRST_PAUSE if last is None else min(2 * last.pause, LONGEST_PAUSE)
        self._failures[step] = _Failure(now + pause, pause)

    def record_success(self, step: Step) -> None:
        """It came off."""
        self._failures.pop(step, None)

    def keep(self, wanted: Sequence[Step], lost: Iterable[str]) -> None:
        """Forget the steps that nobody wants any more. What a replica lacks is not known while it
        is not seen (`lost`: their URLs), and no file is deleted then: such steps are kept."""
        still, unseen = set(wanted), frozenset(lost)
        self._failures = {
            step: failure
            for step, failure in self._failures.items()
            if step in still or _may_come_back(step, unseen)
        }


def _may_come_back(step: Step, unseen: frozenset[str]) -> bool:
    """Whether it may be wanted again as soon as those that were not seen are."""
    if isinstance(step, Load | Unload):
        return step.replica in unseen
    return isinstance(step, Delete) and bool(unseen)
