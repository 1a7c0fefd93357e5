"""`kintsugi dlq`: events that could not be folded, and sessions that could not be closed."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import DONE, FAILED, PARTLY, Cli, command, noun
from daemon.cli.output import Columns, facts, plain_line
from daemon.cli.serving import ActorName, WhyNot, act_of

if TYPE_CHECKING:
    from consumers.reads.rollouts import DeadLetterLine
    from daemon.core.app import App

group = noun("dlq", "Dead letters: events that could not be folded.")

_SHOWN_BYTES = 200

_COLUMNS: Final = Columns(
    "stream", ("place", lambda letter: f"{letter.partition}:{letter.offset}"), "type", "reason"
)


@command(group, "list")
def list_letters(
    cli: Cli,
    everything: Annotated[
        bool, typer.Option("--all", help="Those that were dropped, too.")
    ] = False,
) -> None:
    """List the dead letters that nobody dropped."""
    with cli.app() as app:
        letters = [row for row in _letters(app) if everything or row.dropped is None]
        halts, rest = _describe_fold(app)
    cli.out.show_rows(letters, _COLUMNS)
    for halt in halts:
        cli.out.warn(halt)
    if not letters:
        cli.out.hint(f"no dead letter: {rest}")


@command(group)
def show(
    cli: Cli,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    place: Annotated[str, typer.Argument(metavar="P:N", help="Partition and offset.")],
) -> None:
    """Show a dead letter, as far as it can be read."""
    from daemon.cli.log import event_line
    from daemon.maintenance.dead_letters import at, record_of

    with cli.app() as app:
        letter = at(_letters(app), stream, place)
        record = record_of(letter, app.readable_log)
        line = event_line(record, app.bodies, tokens=False)
    document: dict[str, Any] = {
        **asdict(letter),
        "key": record.key,
        "bytes": len(record.value),
        "headers": {name: value.decode(errors="replace") for name, value in record.headers},
        "begins": record.value[:_SHOWN_BYTES].decode(errors="replace"),
        "event": line,
    }
    if cli.out.json:
        cli.out.document(document)
        return
    shown = {name: value for name, value in document.items() if name not in ("headers", "event")}
    cli.out.show(facts(shown | document["headers"]))


@command(group)
def retry(
    cli: Cli,
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM")] = None,
    place: Annotated[str | None, typer.Argument(metavar="P:N]", help="Default: all.")] = None,
) -> int:
    """Say whether the present code can fold them; what puts them into the tables is a rebuild.

    Of a session that could not become a rollout, make the rollout, once its cause was mended.
    """
    from daemon.core.app import explain_errors
    from daemon.maintenance.dead_letters import at, attempt

    if stream is not None and place is None:
        raise typer.BadParameter("name its place as well, as P:N", param_hint="STREAM")
    with cli.app() as app:
        letters = _letters(app)
        if stream is not None and place is not None:
            letters = [at(letters, stream, place)]
        with explain_errors(app.engine):
            attempts = [attempt(letter, app) for letter in letters]
        halts, rest = _describe_fold(app)
    foldable = sum(result.foldable for result in attempts)
    unfolded = sum(result.foldable and not result.recorded for result in attempts)
    if cli.out.json:
        cli.out.document(
            [
                {
                    "stream": result.letter.stream,
                    "partition": result.letter.partition,
                    "offset": result.letter.offset,
                    "foldable": result.foldable,
                    "reason": result.reason,
                    "recorded": result.recorded,
                }
                for result in attempts
            ]
        )
    else:
        for result in attempts:
            where = f"{result.letter.stream} {result.letter.partition}:{result.letter.offset}"
            well = "is a rollout now" if result.recorded else "can be folded now"
            cli.out.show(plain_line(f"{where}: {result.reason or well}"))
    for halt in halts:
        cli.out.warn(halt)
    if unfolded:
        cli.out.hint(
            f"{unfolded:,} of {len(attempts):,} can be folded now; put them into the tables: "
            "kintsugi rebuild --yes"
        )
    elif not attempts:
        cli.out.hint(f"no dead letter: {rest}")
    if foldable == len(attempts):
        return DONE
    return PARTLY if foldable else FAILED


@command(group)
def drop(
    cli: Cli,
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    place: Annotated[str, typer.Argument(metavar="P:N", help="Partition and offset.")],
    reason: WhyNot,
    actor: ActorName = None,
) -> None:
    """Hear no more of a dead letter that will never be folded. It stays in log and tables."""
    from consumers.reads.rollouts import DROP
    from daemon.core.decision_log import Decisions
    from daemon.maintenance.dead_letters import at

    if not reason.strip():
        raise typer.BadParameter("say why, for the record", param_hint="--reason")
    with cli.app() as app:
        app.settle()
        letter = at(_letters(app), stream, place)
        named = {"stream": letter.stream, "source": letter.source, "sequence": letter.sequence}
        arguments = {name: str(value) for name, value in named.items()}
        acted = Decisions(app).act(act_of(actor, reason), DROP, arguments)
    text = f"{stream} {place} is dropped; kintsugi dlq list --all still shows it"
    cli.out.report({"acted": acted, **named}, text)


def _describe_fold(app: "App") -> tuple[list[str], str]:
    """Return sentences about what halts the fold, and one about how much of the log is folded."""
    from daemon.core.health import find_halts, lag, read_fold_state
    from events.errors import LogUnavailable

    with app.reading() as connection:
        reached = read_fold_state(connection)
    try:
        log = app.readable_log
        halts, behind = find_halts(log, reached), sum(lag(log, reached).values())
    except LogUnavailable as error:
        # The dead letters are in the tables, which can be read without the log.
        return [], f"whether every event was folded is not known ({error})"
    if halts:
        texts = [f"the fold is halted at {halt.place}: {halt.text}" for halt in halts]
        return texts, f"{behind:,} events wait behind"
    if behind:
        return [], f"{behind:,} events are not folded yet (kintsugi consume)"
    return [], "every event was folded"


def _letters(app: "App") -> "list[DeadLetterLine]":
    from consumers.reads.rollouts import dead_letters

    with app.reading() as connection:
        return dead_letters(connection)
