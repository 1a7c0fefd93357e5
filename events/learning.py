"""What the daemon decided: the events of the stream `learning`, one total order.

They are plain JSON without sections, so that `kcat` and `psql` can read them.
"""

from typing import ClassVar, Literal

from events.position import Position
from events.rollouts import EventData, Id, Name, Task

CONTROL_KEY = "control"
"""One key for the whole stream: its order is the point."""


class Decision(EventData):
    """Base of everything on `learning`."""

    STREAM: ClassVar[str] = "learning"

    def key(self) -> str:
        return CONTROL_KEY


class PatternsDiagnosed(Decision):
    """Closes a round of the training history: priorities move here and nowhere else."""

    TYPE: ClassVar[str] = "PatternsDiagnosed"

    trigger: Literal["import", "diagnose", "schedule"]
    position: Position
    """The rollouts that the round may read: at or before it."""


class TaskProposed(Decision):
    """A task was written for a failure pattern and entered the buffer."""

    TYPE: ClassVar[str] = "TaskProposed"

    alias: Name
    base: Name
    task: Task
    pattern: Name
    source_rollout: Id | None = None
