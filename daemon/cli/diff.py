"""`kintsugi diff`: the first difference between two logs, or between tables folded from logs."""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import DONE, FAILED, Cli, command
from daemon.cli.output import plain_line
from daemon.cli.replay import place_text

if TYPE_CHECKING:
    from consumers.snapshots import SnapshotDivergence
    from daemon.replay.bisect import First
    from daemon.replay.diff import Divergence, LogComparison, TableComparison
    from events.log import Record


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(diff)


def diff(
    cli: Cli,
    one: Annotated[str, typer.Argument(metavar="A", help="A home, export, log or database.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one of the same kind.")],
    first_divergence: Annotated[
        bool, typer.Option("--first-divergence", help="Only where they part first.")
    ] = False,
    of: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="LOG", help="That snapshots are of; of A, then of B."),
    ] = None,
) -> int:
    """Where two logs part, event by event, or two foldings, row by row; exit 1 when they do."""
    from daemon.replay import diff as comparing
    from events.privacy.database_url import render_name

    with ExitStack() as opened:
        sides = [comparing.side(name, opened) for name in (one, other)]
        left, right = sides
        one, other = render_name(one), render_name(other)
        if left.kind != right.kind:
            raise comparing.Incomparable(
                f"{one} is a {left.kind} and {other} is a {right.kind}; name two of a kind, or "
                "fold the log with kintsugi replay --into"
            )
        if left.log is not None and right.log is not None:
            with cli.out.progress("Comparing") as advance:
                logs = comparing.logs(left.log, right.log, advance)
            return _show_logs(cli, one, other, logs, first_divergence)
        from daemon.core.app import explain_errors

        assert left.engine is not None, "it is no log"
        with explain_errors(left.engine):
            tables = comparing.tables(left, right, first_divergence)
            first = None if tables.parted is None else _first(cli, tables.parted, of or [], opened)
        return _show_tables(cli, one, other, tables, first)


def _first(
    cli: Cli, parted: "SnapshotDivergence", named: list[str], opened: ExitStack
) -> "First | None":
    from daemon.replay.bisect import first_event, logs_of

    if len(named) > 2:
        raise typer.BadParameter("name one log, or one of A and one of B", param_hint="--log")
    logs = logs_of(parted, named, opened)
    if not logs:
        cli.out.hint(
            "the snapshots name no log that is there; to learn by which event, name it with --log"
        )
        return None
    with tempfile.TemporaryDirectory(prefix="kintsugi-diff-") as folder:
        return first_event(parted, logs, Path(folder))


def _show_logs(
    cli: Cli, left_name: str, right_name: str, comparison: "LogComparison", first_only: bool
) -> int:
    kept = comparison.divergences[:1] if first_only else comparison.divergences
    if cli.out.json:
        cli.out.document(
            {
                "a": left_name, "b": right_name, "kind": "log", "equal": not comparison.divergences,
                "events": comparison.events, "read": comparison.read,
                "divergences": [_divergence(each) for each in kept],
            }
        )  # fmt: skip
    elif not comparison.divergences:
        cli.out.show(f"equal: {comparison.events:,} events")
    else:
        for each in kept:
            cli.out.show(plain_line(_sentence(each, left_name, right_name)))
    return FAILED if comparison.divergences else DONE


def _divergence(divergence: "Divergence") -> dict[str, Any]:
    return {
        "stream": divergence.stream, "partition": divergence.partition, "offset": divergence.offset,
        "what": divergence.what, "a": _describe_record(divergence.one),
        "b": _describe_record(divergence.other),
    }  # fmt: skip


def _describe_record(record: "Record | None") -> dict[str, Any] | None:
    from events.archive.segments import digest
    from events.envelope import from_headers
    from events.errors import BadRecord

    if record is None:
        return None
    fields: dict[str, Any] = {
        "id": None, "type": None, "source": record.source, "sequence": record.sequence,
        "recorded_ms": record.recorded_ms, "sha256": digest(record),
    }  # fmt: skip
    try:
        envelope = from_headers(record.headers)
    except BadRecord as error:
        return fields | {"error": str(error)}
    return fields | {"id": envelope.id, "type": envelope.type}


def _sentence(divergence: "Divergence", left_name: str, right_name: str) -> str:
    place = f"{divergence.stream}/{divergence.partition}@{divergence.offset}"
    left, right = _describe_record(divergence.one), _describe_record(divergence.other)
    if left is None or right is None:
        there, event = (left_name, left) if right is None else (right_name, right)
        assert event is not None, "one of the two has it"
        return f"{place}: {there} alone has {event['type']} {event['id']}"
    return (
        f"{place}: {divergence.what} is not the same: {left['type']} {left['id']} in {left_name}, "
        f"{right['type']} {right['id']} in {right_name}"
    )


def _show_tables(
    cli: Cli, left_name: str, right_name: str, comparison: "TableComparison", first: "First | None"
) -> int:
    difference, parted = comparison.difference, comparison.parted
    if cli.out.json:
        snapshots = None
        if parted is not None:
            snapshots = {
                "equal_at": None if parted.equal is None else place_text(parted.equal.offsets),
                "differ_at": place_text(parted.one.offsets),
                "events": [0 if parted.equal is None else parted.equal.events, parted.one.events],
            }
        cli.out.document(
            {
                "a": left_name, "b": right_name, "kind": "database", "equal": difference is None,
                "difference": None if difference is None else asdict(difference),
                "changed": comparison.changed, "between": snapshots,
                "first_event": None if first is None else _event(first),
            }
        )  # fmt: skip
    elif difference is None:
        cli.out.show("equal")
    else:
        cli.out.show(plain_line(difference.between(left_name, right_name)))
        if parted is not None:
            before = 0 if parted.equal is None else parted.equal.events
            cli.out.show(f"they parted after event {before:,} and up to {parted.one.events:,}")
        if first is not None:
            cli.out.show(plain_line(_event_sentence(first)))
        for name, rows in comparison.changed.items():
            cli.out.show(f"changed: {name}, {rows:,} rows")
    return DONE if difference is None else FAILED


def _event(first: "First") -> dict[str, Any]:
    record = first.record
    place = {"stream": record.stream, "partition": record.partition, "offset": record.offset}
    return {**place, **(_describe_record(record) or {}), "found_by": first.found_by}


def _event_sentence(first: "First") -> str:
    event = _event(first)
    why = {
        "log": "is not the same in both logs",
        "fold": "is the first that writes a row that differs",
    }[first.found_by]
    place = f"{event['stream']}/{event['partition']}@{event['offset']}"
    return f"at {place}: {event['type']} {event['id']} {why}"
