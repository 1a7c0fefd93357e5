"""The record of a job's round as a file: DIR/rounds/N.json, whole or absent.

The job writes it before it draws tasks from the new pools; daemon/jobs/recording.py makes events of
it. It depends on spec and journal only: a job that is killed and run again writes the same bytes.
If an upgraded program would write other bytes, the job refuses to continue.
"""

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from daemon.solver.journal import BadJournal
from events.envelope import derive_id
from events.jobs import JobSpec, Sha256, TaskPool
from events.learning import (
    Decision,
    Directive,
    DirectiveWritten,
    JobRound,
    PoolShare,
    PoolsShifted,
    TaskProposed,
    TaskRejected,
)
from events.messages import StrictModel
from events.registry import first_problem

ROUNDS: Final = "rounds"


class WrittenTask(StrictModel):
    """Task that a round proposed: accepted or rejected."""

    event: str
    data: TaskProposed | TaskRejected


class RoundRecord(StrictModel):
    spec: Sha256
    number: int
    """Number of the round in its job, from 1."""
    rollouts: int
    failures: int
    """Number of failures among `rollouts`, duplicates removed."""
    unread: int
    """Number of rollouts whose tokens do not give their conversation back."""
    directive: Directive
    tasks: tuple[WrittenTask, ...]
    pools: tuple[TaskPool, ...]
    """Pools that the job draws from after this round."""
    shares: tuple[PoolShare, ...]

    def content(self) -> bytes:
        """Return the bytes of the record's file."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    def decisions(self, spec: JobSpec) -> dict[str, Decision]:
        """Return event id -> event of the round, in order. Ids depend on job and round number."""
        assert spec.rounds is not None, "only a job with rounds closes some"
        name = JobRound(job=spec.job, number=self.number)
        cycle, place = spec.rounds.cycle, (spec.job, "round", str(self.number))
        directed = DirectiveWritten(
            cycle=cycle, round=spec.rounds.history, directive=self.directive, job_round=name
        )
        shifted = PoolsShifted(
            cycle=cycle,
            job_round=name,
            rollouts=self.rollouts,
            failures=self.failures,
            unread=self.unread,
            pools=self.shares,
        )
        return {
            derive_id(*place): directed,
            **{task.event: task.data for task in self.tasks},
            derive_id(*place, "pools"): shifted,
        }


def record_path(out: Path, number: int) -> Path:
    """Return the path of a round's record in a job's directory."""
    return out / ROUNDS / f"{number}.json"


def read_record(out: Path, number: int, spec: str) -> RoundRecord | None:
    """Read a round's record; return None before the round is closed. Raise BadJournal if the file
    is damaged or names another spec."""
    path = record_path(out, number)
    if not path.exists():
        return None
    try:
        record = RoundRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise BadJournal(
            f"{path} is no record of a round: {first_problem(error)}; remove it, and the job "
            "writes it again"
        ) from None
    if record.spec != spec:
        raise BadJournal(f"{path} is of another spec; remove the directory to begin again")
    return record
