"""`kintsugi env`: environments, their tasks, and what proves that they are right."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import PARTLY, Cli, command, noun
from daemon.cli.output import facts, table

if TYPE_CHECKING:
    from envs.environment import Environment
    from envs.registry import Found
    from envs.tau2.environment import Tau2Environment

group = noun("env", "Environments: tasks that can be executed.")


def opened(cli: Cli, name_or_path: str) -> "Environment":
    """The environment that a command names. Raises UnknownEnvironment, EnvironmentBroken."""
    from envs.registry import open_environment

    settings = cli.settings
    return open_environment(
        name_or_path, benchmarks=settings.benchmarks, paths=settings.environments.paths
    )


@command(group)
def ls(cli: Cli) -> None:
    """List environments and their splits; real tasks where `benchmarks` names their folder."""
    from envs.registry import environments

    found = environments(cli.settings.environments.paths)
    rows = [row for one in found for row in _splits(cli, one)]
    if cli.out.json:
        cli.out.document(rows)
        return
    cells = [
        [row["env"], row["split"], f"{row['tasks']:,}", len(row["capabilities"]), row["source"]]
        for row in rows
    ]
    columns = ["env", "split", "tasks", "capabilities", "source"]
    cli.out.show(table(columns, cells, right=("tasks", "capabilities"), whole=("env", "split")))
    cli.out.hint("write your own: kintsugi env new NAME")


def _splits(cli: Cli, found: "Found") -> list[dict[str, Any]]:
    """A row for each split of one environment."""
    from envs.registry import BUILT_IN
    from envs.task import GENERATED

    environment = found.load()(cli.settings.benchmarks)
    rows = []
    for split, tasks in environment.splits.items():
        real = split != GENERATED
        kinds = {task.capability for task in environment.tasks(split)} if real else set()
        rows.append(
            {
                "env": found.name,
                "tasks": tasks,
                "source": str(environment.benchmarks)
                if real and found.source == BUILT_IN
                else found.source,
                "split": split,
                "capabilities": sorted(kinds) if real else list(environment.capabilities),
            }
        )
    return rows


_SHOWN_MISMATCHES = 20
"""Of a replay, in the table; `--json` has all of them."""

_SHOWN_VALUE = 160
"""Characters of a value in that table."""

Domain = Annotated[str, typer.Option("--env", metavar="E", help="retail or airline.")]


@command(group)
def replay(
    cli: Cli,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="JSON Lines.")
    ],
    env: Domain,
) -> int | None:
    """Replay recorded tool calls on the real tasks' database and compare everything."""
    from envs.tau2.golden import replay as replayed

    with file.open(encoding="utf-8", errors="replace") as lines:
        found = replayed(_real(cli, env), lines)
    if cli.out.json:
        cli.out.document(asdict(found))
    else:
        if found.mismatches:
            rows = [_cells(asdict(one)) for one in found.mismatches[:_SHOWN_MISMATCHES]]
            cli.out.show(table(["row", "call", "what", "expected", "actual"], rows), "")
        cli.out.show(
            f"{found.equal:,} of {found.calls:,} calls in {found.rows:,} rows are equal, "
            f"{len(found.mismatches):,} values differ"
        )
    return PARTLY if found.mismatches else None


@command(group)
def gold(
    cli: Cli,
    env: Domain,
    split: Annotated[str, typer.Option(metavar="S", help="base, train or test.")] = "base",
) -> int | None:
    """Play the gold actions of real tasks through whole episodes and grade them."""
    from envs.tau2.gold import play_gold

    report = play_gold(_real(cli, env), split)
    if cli.out.json:
        cli.out.document(asdict(report))
        return PARTLY if report.failed else None
    cli.out.show(
        facts(
            {
                "tasks": report.tasks,
                "reward 1": report.reward_one,
                **{f"needs {part}": len(ids) for part, ids in report.unevaluated.items()},
                "failed": ", ".join(report.failed) or 0,
            }
        )
    )
    return PARTLY if report.failed else None


def _real(cli: Cli, name: str) -> "Tau2Environment":
    """The environment, if it is one that has real tasks."""
    from envs.tau2.environment import Tau2Environment

    environment = opened(cli, name)
    if not isinstance(environment, Tau2Environment):
        raise typer.BadParameter(
            f"{name} has no real tasks; give retail or airline", param_hint="--env"
        )
    return environment


def _cells(mismatch: dict[str, Any]) -> list[str]:
    return ["" if value is None else str(value)[:_SHOWN_VALUE] for value in mismatch.values()]
