"""A job's last update, read from the output lines of one start of the job, without torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ConfigDict, ValidationError

from daemon.jobs.attempts import last_lines
from events.messages import StrictModel

if TYPE_CHECKING:
    from pathlib import Path


class Update(StrictModel):
    """The figures of one training update, which a job prints as a line of JSON."""

    # The learner writes more fields, and a later version may add some.
    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: int
    rollouts: int
    budget: int
    metrics: Mapping[str, float | None]


def newest_update(attempt: "Path") -> Update | None:
    """Return the last training update in an attempt's output; None before the first one."""
    for line in reversed(last_lines(attempt.with_suffix(".out"))):
        try:
            return Update.model_validate_json(line)
        except ValidationError:
            # A heartbeat, a warm start or the outcome.
            continue
    return None
