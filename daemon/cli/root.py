"""The command `kintsugi`: all nouns under one name. Importing this module must stay fast for
`kintsugi --help`, so the nouns' modules import what they need inside their commands."""

from typing import Annotated

import typer

from daemon.cli import (
    adapters,
    archive,
    bench,
    config,
    cycle_account,
    cycle_plan,
    cycles,
    db,
    diagnose,
    diff,
    dlq,
    doctor,
    environments,
    erase,
    evaluation,
    explain,
    gateway,
    imports,
    jobs,
    log,
    patterns,
    rebuild,
    replay,
    roles,
    rollouts,
    routes,
    spool,
    status,
    tasks,
    trace,
    up,
    whatif,
)
from daemon.cli.command import Debug, Home, Json, Quiet
from daemon.cli.methods import BENCHMARKS, GROUPS

app = typer.Typer(
    name="kintsugi",
    help="Makes a deployed tool-using agent stronger where it breaks.",
    epilog="Settings: docs/configuration.md. Exit codes: 0 done, 1 failed, 2 wrong usage, "
    "3 done in part, 4 unavailable.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    home: Home = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> int | None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"kintsugi {installed('kintsugi')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit
    return None


for module in (
    imports, evaluation, diagnose, status, rebuild, replay, diff, whatif,
    doctor, gateway, roles, trace, up, explain, erase,
):  # fmt: skip
    module.register(app)
for module in (
    rollouts, patterns, tasks, environments, bench, cycles, jobs, adapters, routes, log, spool, dlq,
    db, config,
):  # fmt: skip
    for group in (module.group, *GROUPS.get(module.group.info.name, ())):
        app.add_typer(group)
archive.register(log.group)
for benchmark in BENCHMARKS:
    benchmark.register(bench.group)
cycle_plan.register(cycles.group)
cycle_account.register(cycles.group)
