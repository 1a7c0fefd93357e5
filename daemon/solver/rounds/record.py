"""The record of a job's round as a file: DIR/rounds/N.json, whole or absent.

The job writes it before it draws from the new pools; daemon/jobs/recording.py makes events of it.
It follows from spec and journal: a job that is killed and run again leaves the same bytes, and
refuses to go on where an upgrade would make others.
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
    """Task that a round wrote, or tried to."""

    event: str
    data: TaskProposed | TaskRejected


class RoundRecord(StrictModel):
    spec: Sha256
    number: int
    """From 1."""
    rollouts: int
    failures: int
    """Deduplicated failures among `rollouts`."""
    unread: int
    """Rollouts whose tokens do not give the conversation back."""
    directive: Directive
    tasks: tuple[WrittenTask, ...]
    pools: tuple[TaskPool, ...]
    """Pools from then on."""
    shares: tuple[PoolShare, ...]

    def content(self) -> bytes:
        """Return the content of its file."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    def decisions(self, spec: JobSpec) -> dict[str, Decision]:
        """Return the events of the round by id, in order. Ids follow from job and number."""
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
    """Read a round's record; None while it is open. Raise BadJournal for damage or another spec."""
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
