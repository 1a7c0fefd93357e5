"""`kintsugi env`: environments, their tasks, and what proves that they are right."""

from typing import TYPE_CHECKING, Any

from daemon.cli.command import Cli, command, noun
from daemon.cli.output import table

if TYPE_CHECKING:
    from envs.environment import Environment
    from envs.registry import Found

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
