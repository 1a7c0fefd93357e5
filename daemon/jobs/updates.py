"""A job's last update, read from the output lines of one start of the job, without torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ConfigDict, ValidationError

from daemon.jobs.attempts import last_lines
from events.messages import StrictModel

if TYPE_CHECKING:
    from pathlib import Path


class Update(StrictModel):
    """A line of a job about an update."""

    # The learner writes more fields, and a later version may add some.
    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: int
    rollouts: int
    budget: int
    metrics: Mapping[str, float | None]


def newest_update(attempt: "Path") -> Update | None:
    """Return an attempt's last update; None before the first."""
    for line in reversed(last_lines(attempt.with_suffix(".out"))):
        try:
            return Update.model_validate_json(line)
        except ValidationError:
            # A heartbeat, a warm start or the outcome.
            continue
    return None
