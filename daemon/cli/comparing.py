"""`kintsugi diff`: where two logs part, or two foldings."""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import DONE, FAILED, Cli, command
from daemon.cli.output import plain
from daemon.cli.replaying import place_text

if TYPE_CHECKING:
    from consumers.snapshots import SnapshotDivergence
    from daemon.replay.bisect import First
    from daemon.replay.diff import Divergence, LogsCompared, TablesCompared
    from events.log import Record


def register(app: typer.Typer) -> None:
    """Add the command."""
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

    with ExitStack() as opened:
        sides = [comparing.side(name, opened) for name in (one, other)]
        left, right = sides
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


def _first(cli: Cli, parted: "SnapshotDivergence", named: list[str], opened: ExitStack) -> "First | None":
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


def _show_logs(cli: Cli, one: str, other: str, found: "LogsCompared", first_only: bool) -> int:
    kept = found.divergences[:1] if first_only else found.divergences
    if cli.out.json:
        cli.out.document(
            {
                "a": one, "b": other, "kind": "log", "equal": not found.divergences,
                "events": found.events, "read": found.read,
                "divergences": [_divergence(each) for each in kept],
            }
        )  # fmt: skip
    elif not found.divergences:
        cli.out.show(f"equal: {found.events:,} events")
    else:
        for each in kept:
            cli.out.show(plain(_sentence(each, one, other)))
    return FAILED if found.divergences else DONE


def _divergence(found: "Divergence") -> dict[str, Any]:
    return {
        "stream": found.stream, "partition": found.partition, "offset": found.offset,
        "what": found.what, "a": _said(found.one), "b": _said(found.other),
    }  # fmt: skip


def _said(record: "Record | None") -> dict[str, Any] | None:
    """An event as far as a person can tell it from another one."""
    from events.archive.segments import digest
    from events.envelope import from_headers
    from events.errors import BadRecord

    if record is None:
        return None
    said: dict[str, Any] = {
        "id": None, "type": None, "source": record.source, "sequence": record.sequence,
        "recorded_ms": record.recorded_ms, "sha256": digest(record),
    }  # fmt: skip
    try:
        envelope = from_headers(record.headers)
    except BadRecord as error:
        return said | {"error": str(error)}
    return said | {"id": envelope.id, "type": envelope.type}


def _sentence(found: "Divergence", one: str, other: str) -> str:
    place = f"{found.stream}/{found.partition}@{found.offset}"
    left, right = _said(found.one), _said(found.other)
    if left is None or right is None:
        there, said = (one, left) if right is None else (other, right)
        assert said is not None, "one of the two has it"
        return f"{place}: {there} alone has {said['type']} {said['id']}"
    return (
        f"{place}: {found.what} is not the same: {left['type']} {left['id']} in {one}, "
        f"{right['type']} {right['id']} in {other}"
    )


def _show_tables(
    cli: Cli, one: str, other: str, found: "TablesCompared", first: "First | None"
) -> int:
    difference, parted = found.difference, found.parted
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
                "a": one, "b": other, "kind": "database", "equal": difference is None,
                "difference": None if difference is None else asdict(difference),
                "changed": found.changed, "between": snapshots,
                "first_event": None if first is None else _event(first),
            }
        )  # fmt: skip
    elif difference is None:
        cli.out.show("equal")
    else:
        cli.out.show(plain(difference.between(one, other)))
        if parted is not None:
            before = 0 if parted.equal is None else parted.equal.events
            cli.out.show(f"they parted after event {before:,} and up to {parted.one.events:,}")
        if first is not None:
            cli.out.show(plain(_event_sentence(first)))
        for name, rows in found.changed.items():
            cli.out.show(f"changed: {name}, {rows:,} rows")
    return DONE if difference is None else FAILED


def _event(first: "First") -> dict[str, Any]:
    record = first.record
    place = {"stream": record.stream, "partition": record.partition, "offset": record.offset}
    return {**place, **(_said(record) or {}), "found_by": first.found_by}


def _event_sentence(first: "First") -> str:
    said = _event(first)
    why = {
        "log": "is not the same in both logs",
        "fold": "is the first that writes a row that differs",
    }[first.found_by]
    place = f"{said['stream']}/{said['partition']}@{said['offset']}"
    return f"at {place}: {said['type']} {said['id']} {why}"
