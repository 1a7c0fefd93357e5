"""`kintsugi db`: the tables of the projection database."""

from daemon.cli.command import DONE, FAILED, Cli, command, noun

group = noun("db", "The projection database.")


@command(group)
def upgrade(cli: Cli) -> None:
    """Bring the tables to this version; two at once do the work once."""
    from consumers.database import read_revision
    from daemon.core.app import explain_errors
    from migrations.upgrade import upgrade as migrate

    with cli.app() as app:
        before = read_revision(app.database)
        with explain_errors(app.database):
            reached = migrate(app.database)
    text = f"upgraded from {before or 'an empty database'} to revision {reached}"
    if before == reached:
        text = f"already at revision {reached}"
    cli.out.report({"before": before, "revision": reached}, text)


@command(group)
def check(cli: Cli) -> int:
    """Say whether the tables are this version's; exit 1 when they are not."""
    from consumers.database import read_revision
    from daemon.core.app import explain_errors
    from migrations.upgrade import differences, head

    with cli.app() as app:
        # SQLite tables migrate when opened, so the check looks at what a command would meet.
        engine = app.engine if app.database.dialect.name == "sqlite" else app.database
        current, wanted = read_revision(engine), head()
        with explain_errors(engine):
            differing = differences(engine) if current == wanted else []
    ok = current == wanted and not differing
    if cli.out.json:
        cli.out.document({"ok": ok, "revision": current, "head": wanted, "differences": differing})
        return DONE if ok else FAILED
    cli.out.show(f"revision {current or 'none'}, this version needs {wanted}", *differing)
    if current != wanted:
        cli.out.hint("bring it there: kintsugi db upgrade")
    elif differing:
        cli.out.hint("somebody changed the tables by hand; fold them anew in an empty database")
    return DONE if ok else FAILED
