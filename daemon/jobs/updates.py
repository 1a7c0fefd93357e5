"""What a job told of its last update (lines of an attempt -> figures), read without torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ConfigDict, ValidationError

from daemon.jobs.attempts import last_lines
from events.messages import StrictModel

if TYPE_CHECKING:
    from pathlib import Path


class Update(StrictModel):
    """A line of a job that tells of an update."""

    # The learner says more, and a later version may.
    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: int
    rollouts: int
    budget: int
    metrics: Mapping[str, float | None]


def newest_update(attempt: "Path") -> Update | None:
    """The last that an attempt told of; None before the first."""
    for line in reversed(last_lines(attempt.with_suffix(".out"))):
        try:
            return Update.model_validate_json(line)
        except ValidationError:
            # A heartbeat, a warm start or the outcome.
            continue
    return None
