"""`kintsugi doctor`: is everything there that this home needs?"""

from dataclasses import asdict
from typing import Any

import typer

from daemon.cli.command import DONE, FAILED, Cli, command
from daemon.cli.output import table


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(doctor)


def doctor(cli: Cli) -> int:
    """Check installation, home, log, database and broker; exit 1 when something is wrong."""
    from daemon.doctor import examine

    with cli.app() as app:
        checks = examine(app)
    ok = all(check.ok for check in checks)
    if cli.out.json:
        cli.out.document({"ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        rows = [[_mark(check.ok), check.check, check.detail] for check in checks]
        cli.out.show(table(["", "check", "detail"], rows))
    return DONE if ok else FAILED


def _mark(ok: bool) -> Any:
    from rich.text import Text

    return Text("ok", "green") if ok else Text("FAILED", "bold red")
