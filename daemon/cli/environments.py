"""`kintsugi env`: environments, their tasks, and what proves that they are right."""

import inspect
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import DONE, FAILED, PARTLY, Cli, command, noun
from daemon.cli.output import facts, table

if TYPE_CHECKING:
    from daemon.maintenance.regrade import Regraded
    from envs.checking import Check, Rates
    from envs.environment import Environment
    from envs.registry import EnvironmentEntry
    from envs.tau2.environment import Tau2Environment

_NEW_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""Also the name of a Python file and, in capitals, of a class."""

_MOST_SEED: Final = 10**17
"""Of a check's first task: an id has 18 digits (envs/environment.py), and later tasks need more."""

group = noun("env", "Environments: tasks that can be executed.")


def opened(cli: Cli, name_or_path: str) -> "Environment":
    """The environment that a command names, which may be any path: for an argument of the operator
    alone. Raises UnknownEnvironment, EnvironmentBroken."""
    from envs.registry import open_place

    settings = cli.settings
    return open_place(
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


def _splits(cli: Cli, found: "EnvironmentEntry") -> list[dict[str, Any]]:
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
def new(
    cli: Cli, name: Annotated[str, typer.Argument(help="Small letters, digits and _.")]
) -> None:
    """Write NAME.py here: a small environment that works, to be made yours."""
    text = _skeleton(name, _taken(cli))
    file = Path(f"{name}.py")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise typer.BadParameter(
            f"{file} exists already and is not overwritten; choose another name"
        ) from None
    if cli.out.json:
        cli.out.document({"env": name, "file": str(file.absolute())})
        return
    cli.out.show(f"wrote {file}: tools, a policy and two kinds of task")
    cli.out.hint(
        f"prove it: kintsugi env check {file}\n"
        f"then make it yours, a tool and a kind of task at a time, and prove it again\n"
        f"to use it by its name: environments.paths = [{str(file.absolute())!r}] in kintsugi.toml"
    )


def _taken(cli: Cli) -> dict[str, str]:
    """The names of environments that there are, and where each comes from."""
    from envs.registry import environments

    return {one.name: one.source for one in environments(cli.settings.environments.paths)}


def _skeleton(name: str, taken: Mapping[str, str]) -> str:
    """The text of a new environment. Raises BadParameter for a name that cannot be used."""
    from envs import skeleton

    if not _NEW_NAME.fullmatch(name):
        raise typer.BadParameter(
            f"{name!r} is no name; use small letters, digits and _, a letter first, at most 40"
        )
    if name in taken:
        raise typer.BadParameter(
            f"there is an environment {name!r} already ({taken[name]}); choose another name"
        )
    title = "".join(part.capitalize() for part in name.split("_"))
    if keyword.iskeyword(title) or (hasattr(skeleton, title) and name != "skeleton"):
        raise typer.BadParameter(
            f"a class cannot be called {title!r} in that file; choose another name"
        )
    text = inspect.getsource(skeleton)
    return text.replace("Skeleton", title).replace("skeleton", name)


@command(group)
def check(
    cli: Cli,
    env: Annotated[str, typer.Argument(help="Name of an environment, or its file.")],
    split: Annotated[str, typer.Option(help="Which tasks.")] = "generated",
    tasks: Annotated[
        int | None, typer.Option(min=1, help="How many; default: as many as the split has.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=_MOST_SEED, help="Of the first generated task, and of the random agent."
        ),
    ] = 0,
) -> int:
    """Prove that an environment is right; exit 1 when something is wrong.

    Loaded tasks are reported, not judged. The file of an environment is run.
    """
    from envs import checking
    from envs.footprint import Sample

    settings = cli.settings
    sample = Sample(
        environment=env,
        benchmarks=settings.benchmarks,
        paths=settings.environments.paths,
        split=split,
        tasks=tasks,
        seed=seed,
    )
    with cli.out.progress("Checking") as advance:
        found = checking.check(sample, advance)
    if cli.out.json:
        cli.out.document(_as_document(found))
    else:
        cli.out.show(_rates(found), *_conclusions(found))
    return FAILED if found.problems else DONE


def _as_document(found: "Check") -> dict[str, Any]:
    return {
        "env": found.environment,
        "split": found.split,
        "judged": found.judged,
        "digest": found.digest,
        "deterministic": found.deterministic,
        **asdict(found.overall),
        "capabilities": {name: asdict(rates) for name, rates in found.capabilities.items()},
        "problems": list(found.problems),
    }


def _rates(found: "Check") -> Any:
    rows = [_row(name, rates) for name, rates in found.capabilities.items()]
    rows.append(_row("all", found.overall))
    numbers = ["tasks", "oracle", "null", "random"]
    return table(["capability", *numbers], rows, right=numbers, whole=["capability"])


def _row(name: str, rates: "Rates") -> list[Any]:
    means = (rates.oracle, rates.null, rates.random)
    return [name, f"{rates.tasks:,}", *(None if one is None else f"{one:.2f}" for one in means)]


def _conclusions(found: "Check") -> list[str]:
    """What the rates mean, and one line for each problem."""
    said = [f"deterministic: {'yes' if found.deterministic else 'no'}"]
    if not found.judged:
        said.append("the tasks were loaded, so their rates are not judged")
    if found.overall.unjudged:
        said.append(f"{found.overall.unjudged} tasks need a judge; the rates leave them out")
    if not found.problems:
        return ["", *said, "no problems"]
    count = len(found.problems)
    heading = f"{count} problem{'s' if count > 1 else ''}:"
    return ["", *said, heading, *map(_bullet, found.problems)]


def _bullet(problem: str) -> str:
    from daemon.cli.output import plain

    return f"- {plain(problem)}"


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
    if not found.rows:
        cli.out.warn(f"{file} has no rows, so nothing was compared; name a file of recorded calls")
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
    if not found.rows:
        return FAILED
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


@command(group)
def regrade(
    cli: Cli,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", exists=True, help="Results of tau2-bench, or folders."),
    ],
) -> int:
    """Grade recorded simulations again, by replay with the tasks that their files embed.

    Exit 3 when a verdict is not ours, a file seems mislabelled, or something cannot be read.
    """
    from daemon.maintenance.regrade import regrade as regraded
    from envs.registry import open_environment
    from producers.importers.importer import total_bytes

    # The names stand in files of others.
    environment = cache(
        partial(
            open_environment,
            benchmarks=cli.settings.benchmarks,
            paths=cli.settings.environments.paths,
        )
    )
    with cli.out.progress("Grading again", total_bytes(paths), "bytes") as advance:
        found = list(regraded(paths, environment, advance))
    if cli.out.json:
        cli.out.document([asdict(one) for one in found])
    else:
        cli.out.show(*_agreement(found))
    return DONE if all(one.in_order for one in found) else PARTLY


def _agreement(found: Sequence["Regraded"]) -> list[Any]:
    """The table, then what each file has against it."""
    numbers = ["simulations", "graded", "agree"]
    cells = [
        [one.file, one.env, f"{one.simulations:,}", f"{one.graded:,}", f"{one.agree:,}"]
        for one in found
    ]
    remarks = [
        *(f"{one.file}: {one.why}" for one in found if one.why),
        *(
            f"{wrong.task} was {_verdict(wrong.recorded)}, is {_verdict(wrong.ours)} "
            f"({wrong.rollout}): {wrong.why}"
            for one in found
            for wrong in one.disagree
            if not one.mislabelled
        ),
        *(f"{bad.file}, {bad.position}: {bad.reason}" for one in found for bad in one.rejected),
    ]
    return [table(["file", "env", *numbers], cells, right=numbers), "", *map(_bullet, remarks)]


def _verdict(success: bool) -> str:
    return "a success" if success else "a failure"


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
