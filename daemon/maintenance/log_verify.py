"""`kintsugi log verify`: read every record of the log and report what is wrong with it.

    file       the embedded log's own check: integrity, dense offsets, checksums
    record     envelope, head, content and token arrays can be decoded
    blob       the body that a record names exists and has the recorded hash
    sequence   no event of a source is missing
    position   the fold has not read beyond the log's end

Whether the tables follow from the log is checked by `kintsugi rebuild`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from events.bodies import Bodies
from events.errors import KintsugiError
from events.log import EventLog, Record, read_all
from events.registry import UnknownType
from events.sqlite.log import SqliteLog
from events.streams import STREAMS

if TYPE_CHECKING:
    from daemon.core.health import FoldState


@dataclass
class VerifyReport:
    """Findings of a verification."""

    events: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass
class _Sequences:
    following: int
    highest: int

    def add(self, sequence: int) -> None:
        self.highest = max(self.highest, sequence)
        if sequence == self.following:
            self.following += 1


def verify(
    log: EventLog, bodies: Bodies, reached: "FoldState", progress: Callable[[int], None]
) -> VerifyReport:
    """Check everything up to the log's present end; `reached` is the position of the fold."""
    report = VerifyReport()
    if isinstance(log, SqliteLog):
        report.problems += log.check()
    for stream in STREAMS:
        ends = log.end(stream)
        for partition, start in enumerate(log.start(stream)):
            try:
                _partition(log, bodies, stream, partition, start, ends[partition], report, progress)
            except KintsugiError as error:
                # An unreadable partition is a finding; the others are still checked.
                report.problems.append(str(error))
    report.problems += _positions(log, reached)
    return report


def _partition(
    log: EventLog,
    bodies: Bodies,
    stream: str,
    partition: int,
    start: int,
    end: int,
    report: VerifyReport,
    progress: Callable[[int], None],
) -> None:
    sources: dict[str, _Sequences] = {}
    for page in read_all(log, stream, partition, start, end):
        for record in page:
            first = record.sequence if start > 0 else 0
            sources.setdefault(record.source, _Sequences(first, first)).add(record.sequence)
            try:
                _record(record, bodies)
            except KintsugiError as error:
                report.problems.append(f"{stream}/{partition}@{record.offset}: {error}")
        report.events += len(page)
        progress(len(page))
    for source, numbers in sorted(sources.items()):
        if numbers.highest >= numbers.following:
            report.problems.append(
                f"{stream}/{partition}: of source {source} event {numbers.following} is missing, "
                f"and {numbers.highest} is there; ship again what its home holds: kintsugi spool "
                "drain --again"
            )


def _record(record: Record, bodies: Bodies) -> None:
    try:
        bodies.whole(record)
    except UnknownType:
        return  # written for another projection, and skipped by every fold


def _positions(log: EventLog, reached: "FoldState") -> list[str]:
    return [
        f"{stream}/{partition} was folded up to offset {offset} and ends at "
        f"{log.end(stream)[partition]}; this is another log or it was wiped: restore it"
        for (stream, partition), offset in sorted(reached.offsets.items())
        if offset > log.end(stream)[partition]
    ]
