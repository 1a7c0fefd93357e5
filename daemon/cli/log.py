"""`kintsugi log`: print and check the events of the log."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import DONE, FAILED, Cli, command, noun
from daemon.cli.output import plain_line, table

if TYPE_CHECKING:
    from events.bodies import Bodies
    from events.log import EventLog, Record

group = noun("log", "The events themselves.")

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="rollouts or learning.")]
Tokens = Annotated[bool, typer.Option("--tokens", help="Token arrays as well.")]

_FROM = (
    "N in every partition, P:N in partition P alone, or a position like "
    "rollouts@0,0,4,0,0,0,0,0;learning@5"
)
_WAIT_SECONDS = 0.5


@command(group)
def stats(cli: Cli) -> None:
    """Events and bytes per stream."""
    from daemon.core.health import streams

    with cli.app() as app:
        counts = streams(app)
    if cli.out.json:
        cli.out.document({"streams": counts})
        return
    rows = [[name, f"{of['events']:,}", f"{of['bytes']:,}"] for name, of in counts.items()]
    cli.out.show(table(["stream", "events", "bytes"], rows, right=("events", "bytes")))


@command(group)
def cat(
    cli: Cli,
    stream: Stream,
    start: Annotated[
        str | None, typer.Option("--from", metavar="N|P:N|POSITION", help=f"{_FROM}.")
    ] = None,
    tokens: Tokens = False,
) -> None:
    """Print events as JSON Lines, ordered by partition, then offset."""
    from events.log import check_bounds, read_all

    _check_stream(stream)
    with cli.app() as app:
        log = app.readable_log
        starts, ends = log.start(stream), log.end(stream)
        for partition, offset in _starts(log, stream, start):
            check_bounds(stream, partition, offset, starts[partition], ends[partition])
            for page in read_all(log, stream, partition, offset, ends[partition]):
                for record in page:
                    cli.out.document(event_line(record, app.bodies, tokens))


@command(group)
def tail(
    cli: Cli,
    stream: Stream,
    number: Annotated[
        int, typer.Option("-n", "--lines", min=0, metavar="N", help="How many.")
    ] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more.")] = False,
    tokens: Tokens = False,
) -> None:
    """Print the newest events, by the time of their recording; -f goes on."""
    import sys

    _check_stream(stream)
    with cli.app() as app:
        log = app.readable_log
        cursor = dict(enumerate(log.end(stream)))
        for record in _newest(log, stream, number, cursor):
            _print_event(cli, record, app.bodies, tokens)
        while follow:
            sys.stdout.flush()
            log.wait({(stream, p): offset for p, offset in cursor.items()}, _WAIT_SECONDS)
            for partition in cursor:
                for record in log.read(stream, partition, cursor[partition]):
                    _print_event(cli, record, app.bodies, tokens)
                    cursor[partition] = record.offset + 1


@command(group)
def verify(cli: Cli) -> int:
    """Read every event and say what is wrong; exit 1 when something is."""
    from daemon.core.health import events_in, read_fold_state
    from daemon.maintenance.log_verify import verify as verify_log

    with cli.app() as app:
        with app.reading() as connection:
            reached = read_fold_state(connection)
        log = app.readable_log
        with cli.out.progress("Reading", events_in(log)) as advance:
            report = verify_log(log, app.bodies, reached, advance)
    if cli.out.json:
        cli.out.document({"ok": report.ok, "events": report.events, "problems": report.problems})
    else:
        cli.out.show(*(plain_line(problem) for problem in report.problems))
        problems = f"{len(report.problems):,} problems" if report.problems else "no problem"
        cli.out.show(f"{report.events:,} events, {problems}")
    return DONE if report.ok else FAILED


def event_line(record: "Record", bodies: "Bodies", tokens: bool) -> dict[str, Any]:
    """Return an event as documented; if it is unreadable, `data` is None and `error` the reason."""
    from events.envelope import from_headers, timestamp
    from events.errors import KintsugiError

    line: dict[str, Any] = {
        "stream": record.stream,
        "partition": record.partition,
        "offset": record.offset,
        "id": None,
        "type": None,
        "version": None,
        "time": None,
        "subject": None,
        "cause": None,
        "data": None,
        "source": record.source,
        "sequence": record.sequence,
    }
    try:
        envelope = from_headers(record.headers)
        line["id"], line["type"], line["version"] = envelope.id, envelope.type, envelope.version
        line["time"] = None if envelope.time is None else timestamp(envelope.time)
        line["subject"], line["cause"] = envelope.subject, envelope.cause
        _fill_data(line, record, bodies, tokens)
    except KintsugiError as error:
        line["error"] = str(error)
    return line


def _fill_data(line: dict[str, Any], record: "Record", bodies: "Bodies", tokens: bool) -> None:
    """Add head, content and arrays in this order: sections before a damaged one are then shown."""
    from events.codec import decode

    line["data"] = decode(record).data.model_dump(mode="json")
    body = bodies.whole(record, arrays=tokens)
    if body.is_unreadable:
        line["erased"] = True
    content = getattr(body.event.data, "content", None)
    if content is not None:
        line["data"] = body.event.data.model_dump(mode="json") | content.model_dump(mode="json")
    if tokens:
        line["data"] |= {name: list(values) for name, values in body.arrays.items()}


def _print_event(cli: Cli, record: "Record", bodies: "Bodies", tokens: bool) -> None:
    line = event_line(record, bodies, tokens)
    if cli.out.json or tokens:
        cli.out.document(line)
    else:
        place = f"{line['stream']}/{line['partition']}@{line['offset']}"
        what = line.get("error") or f"{line['type']} {line['subject']}"
        cli.out.show(plain_line(f"{line['time'] or '-':27}  {place:16}  {what}"))


def _check_stream(stream: str) -> None:
    from events.streams import STREAMS

    if stream not in STREAMS:
        raise typer.BadParameter(
            f"{stream!r} is not one of {', '.join(STREAMS)}", param_hint="STREAM"
        )


def _starts(log: "EventLog", stream: str, text: str | None) -> list[tuple[int, int]]:
    """Return (partition, first offset) for each partition whose records are to be printed."""
    first, ends = log.start(stream), log.end(stream)
    if text is None:
        return list(enumerate(first))
    if re.fullmatch(r"\d+", text):
        # The number may lie beyond one partition's end, but not beyond another's.
        return [(p, min(int(text), end)) for p, end in enumerate(ends)]
    if match := re.fullmatch(r"(\d+):(\d+)", text):
        partition = int(match[1])
        if partition >= len(first):
            raise _bad_start(text, f"{stream} has partitions 0 to {len(first) - 1}")
        return [(partition, int(match[2]))]
    return list(enumerate(_position(text, stream, len(first))))


def _position(text: str, stream: str, partitions: int) -> list[int]:
    parts = dict(part.strip().partition("@")[::2] for part in text.split(";") if part.strip())
    if stream not in parts:
        raise _bad_start(text, f"write {_FROM}, naming {stream}")
    offsets = parts[stream].split(",")
    if len(offsets) != partitions or not all(re.fullmatch(r"\s*\d+\s*", o) for o in offsets):
        raise _bad_start(text, f"{stream} takes {partitions} offsets, one per partition")
    return [int(offset) for offset in offsets]


def _bad_start(text: str, remedy: str) -> typer.BadParameter:
    return typer.BadParameter(f"{text!r} is no place in the log; {remedy}", param_hint="--from")


def _newest(log: "EventLog", stream: str, number: int, ends: dict[int, int]) -> "Iterator[Record]":
    """Yield the last `number` records before `ends` over all partitions, the oldest first."""
    records = [
        record
        for partition, start in enumerate(log.start(stream))
        if ends[partition] > start and number
        for record in log.read(stream, partition, max(start, ends[partition] - number), number)
        if record.offset < ends[partition]
    ]
    records.sort(key=lambda record: (record.recorded_ms, record.partition, record.offset))
    yield from records[-number:] if number else []
