"""The cycles recorded in the tables."""

from dataclasses import dataclass

from sqlalchemy import Connection

from consumers.reads import learning
from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import rollouts_within
from events.archive.archive import Cut
from events.envelope import parse_timestamp
from events.streams import LEARNING


@dataclass(frozen=True, slots=True)
class PastCycle:
    """A cycle that began in the past, and its cost."""

    row: CycleRow
    decided: int
    """Offset of `learning` at which the cycle began."""
    rollouts: int
    """Number of rollouts that this cycle read and no earlier one."""
    seconds: float | None
    """Duration; None while the cycle is open."""
    job_seconds: float

    def within(self, start: Cut | None, end: Cut) -> bool:
        """Return whether the cycle began in a range of the log."""
        at = (LEARNING.name, 0)
        return (0 if start is None else start[at]) <= self.decided < end[at]


def read_past_cycles(connection: Connection) -> list[PastCycle]:
    """Return all recorded cycles, oldest first."""
    jobs = {job.cycle: job.seconds or 0.0 for job in learning.jobs(connection)}
    begun = learning.read_cycle_offsets(connection)
    cycles: list[PastCycle] = []
    read: dict[tuple[str, str], int] = {}
    for row in reversed(learning.cycles(connection)):
        within = rollouts_within(connection, row.alias, row.base, row.position)
        before = read.get((row.alias, row.base), 0)
        read[row.alias, row.base] = within
        cycles.append(
            PastCycle(
                row, begun[row.cycle], within - before, _seconds(row), jobs.get(row.cycle, 0.0)
            )
        )
    return cycles


def _seconds(row: CycleRow) -> float | None:
    if row.started is None or row.ended is None:
        return None
    return (parse_timestamp(row.ended) - parse_timestamp(row.started)).total_seconds()
