"""`kintsugi doctor`: check everything that this home needs, or an engine."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import DONE, FAILED, UNAVAILABLE, Cli, command
from daemon.cli.output import Columns

if TYPE_CHECKING:
    from daemon.status.doctor.report import Check


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(doctor)


def doctor(
    cli: Cli,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Check this engine instead, by probes; ends in /v1."),
    ] = None,
) -> int:
    """Check installation, home, log, database and broker; exit 1 when something is wrong."""
    if upstream is not None:
        return _upstream(cli, upstream)
    from daemon.status.doctor.report import examine

    with cli.app() as app:
        checks = examine(app)
    return _print_checks(cli, checks)


def _upstream(cli: Cli, url: str) -> int:
    from daemon.config.upstreams import upstreams
    from daemon.status.doctor.report import Check
    from daemon.status.engine_probe import Unreachable, examine

    (named,) = upstreams(cli.settings, [url])
    try:
        checks = examine(named, cli.settings.gateway)
    except Unreachable as error:
        _print_checks(cli, [Check("models", False, str(error))])
        return UNAVAILABLE
    return _print_checks(cli, checks)


def _print_checks(cli: Cli, checks: "list[Check]") -> int:
    ok = all(check.ok for check in checks)
    if cli.out.json:
        cli.out.document({"ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        columns = Columns(("", lambda check: _mark(check.ok)), "check", "detail")
        cli.out.show(columns.build_table(checks))
    return DONE if ok else FAILED


def _mark(ok: bool) -> Any:
    from rich.text import Text

    return Text("ok", "green") if ok else Text("FAILED", "bold red")
