"""Replay: fold a range of the log into separate tables, with snapshots at moments on the way.

    replay(log, engine, end=...)            into empty tables: the same as if the log ended there
    replay(..., start=...)                  without what was before: what the range alone makes
    replay(..., every=100_000, keep=...)    snapshots on the way, in the order of recording
    replay(log, engine_of_a_snapshot, ...)  on from there

It has no effects: its log refuses appends and no other process reads its tables. After a `start`,
events count as in a log that begins there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, inspect

from consumers import database
from consumers.batch import upsert
from consumers.digest import digest
from consumers.position import offsets
from consumers.runner import PositionGap, Runner
from consumers.tables import Offset, Source
from events.archive.archive import Cut
from events.archive.views import Span, in_time, starts
from events.errors import KintsugiError
from events.log import EventLog, read_all


class NotEmpty(KintsugiError):
    """The tables already hold folded rows, which a replay with a start would mix with its own."""


class BeforeSnapshot(KintsugiError):
    """The tables already hold events beyond the end of the replay."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay."""

    events: int
    """Number of events folded, without those of a snapshot."""
    hash: str
    end: Cut


def replay(
    log: EventLog,
    engine: Engine,
    end: Cut,
    *,
    start: Cut | None = None,
    every: int | None = None,
    keep: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Fold `log` up to `end` into the tables of `engine`, from their present position.

    `keep` is called after each `every` events with the number of events so far. Raise NotEmpty if
    `start` is given and the tables are not empty, BeforeSnapshot if they are beyond `end`,
    PositionGap if `end` lies between a round and the rollouts that it names.
    """
    span = Span(log, end)
    if start is not None:
        _begin_at(span, engine, start)
    with database.read_transaction(engine) as connection:
        _check_reaches(offsets(connection), end)
    runner = Runner(span, engine, on_progress=on_progress)
    if every is not None and keep is not None:
        for count, cut in _cuts(span, start or starts(log), end, every):
            with database.read_transaction(engine) as connection:
                stands = offsets(connection)
            if any(cut[at] > stands.get(at, 0) for at in cut):
                runner.catch_up(until=cut)
                keep(count)
    try:
        runner.catch_up()
    except PositionGap as error:
        raise PositionGap(
            f"the end of the replay lies between rollouts and a round that names them ({error}); "
            "end it at a time, or at a later place for rollouts"
        ) from error
    with database.read_transaction(engine) as connection:
        return ReplayResult(runner.counters.folded, digest(connection), end)


def is_empty(engine: Engine) -> bool:
    """Return whether a database has no tables at all."""
    return not inspect(engine).get_table_names()


def _check_reaches(stands: Cut, end: Cut) -> None:
    for (stream, partition), offset in sorted(stands.items()):
        if offset > end[stream, partition]:
            raise BeforeSnapshot(
                f"the tables hold {stream}/{partition} up to offset {offset}, and offset "
                f"{end[stream, partition]} was asked for; start from an earlier snapshot or from "
                "none"
            )


def _begin_at(log: EventLog, engine: Engine, start: Cut) -> None:
    """Set the positions to `start`, as if all events before it had been folded."""
    with database.write_transaction(engine) as connection:
        if offsets(connection):
            raise NotEmpty("the tables were folded into; name others to begin elsewhere")
        for (stream, partition), offset in start.items():
            _pass_over(connection, log, stream, partition, offset)


def _pass_over(
    connection: Connection, log: EventLog, stream: str, partition: int, offset: int
) -> None:
    first = log.start(stream)[partition]
    last: dict[str, int] = {}
    for page in read_all(log, stream, partition, first, offset):
        for record in page:
            last[record.source] = max(record.sequence, last.get(record.source, -1))
    place = {"stream": stream, "partition": partition}
    if offset:
        upsert(connection, Offset, [{**place, "next_offset": offset}])
    rows = [
        {**place, "source": source, "sequence": sequence, "beyond": None}
        for source, sequence in sorted(last.items())
    ]
    if rows:
        upsert(connection, Source, rows)


def _cuts(log: EventLog, start: Cut, end: Cut, every: int) -> Iterator[tuple[int, Cut]]:
    cut = dict(start)
    for count, record in enumerate(in_time(log, start, end), start=1):
        cut[record.stream, record.partition] = record.offset + 1
        if count % every == 0:
            yield count, dict(cut)
