"""`kintsugi env`: environments, their tasks, and the checks that they are right."""

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
from daemon.cli.output import facts, plain_line, table
from events.errors import KintsugiError

if TYPE_CHECKING:
    from daemon.maintenance.regrade import RegradeReport
    from envs.checking import Check, Rates
    from envs.environment import Environment
    from envs.registry import EnvironmentEntry
    from envs.tau2.environment import Tau2Environment

_NEW_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""Names of new environments; also a Python file's name and, capitalised, a class's."""

_MOST_SEED: Final = 10**17
"""Largest seed of a check's first task; ids have 18 digits, and later tasks need higher seeds."""

group = noun("env", "Environments: tasks that can be executed.")


def load_environment(cli: Cli, name_or_path: str) -> "Environment":
    """Return the environment with this name or at this path. Any path is opened, so use it only for
    an operator's argument. Raise UnknownEnvironment, EnvironmentBroken."""
    from envs.registry import open_place

    settings = cli.settings
    return open_place(
        name_or_path, benchmarks=settings.benchmarks, paths=settings.environments.paths
    )


@command(group)
def ls(cli: Cli) -> int:
    """List environments and their splits; real tasks where `benchmarks` names their folder.

    One that cannot be opened has a row with the reason, and the exit code is 3.
    """
    from envs.registry import survey

    entries, broken = survey(cli.settings.environments.paths)
    rows = [row for entry in entries for row in _list_rows(cli, entry)]
    rows += [_build_fault_row(entry.name, entry.source, str(entry.error)) for entry in broken]
    code = PARTLY if any(row["reason"] for row in rows) else DONE
    if cli.out.json:
        cli.out.document(rows)
        return code
    cells = [
        [row["env"], row["split"], f"{row['tasks']:,}", len(row["capabilities"]), row["source"]]
        + ([] if code == DONE else [row["reason"]])
        for row in rows
    ]
    columns = ["env", "split", "tasks", "capabilities", "source"]
    columns += [] if code == DONE else ["reason"]
    cli.out.show(table(columns, cells, right=("tasks", "capabilities"), whole=("env", "split")))
    cli.out.hint("write your own: kintsugi env new NAME")
    return code


def _list_rows(cli: Cli, entry: "EnvironmentEntry") -> list[dict[str, Any]]:
    """Return a row for each split of an environment, or one row with the error of opening it."""
    try:
        return _splits(cli, entry)
    # Its code may raise anything, or lack a package; the other environments are still listed.
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, KintsugiError) else f"{type(error).__name__}: "
        return [_build_fault_row(entry.name, entry.source, f"{kind}{error}")]


def _build_fault_row(name: str, source: str, reason: str) -> dict[str, Any]:
    return {
        "env": name, "tasks": 0, "source": source, "split": None, "capabilities": [],
        "reason": " ".join(reason.split()),
    }  # fmt: skip


def _splits(cli: Cli, entry: "EnvironmentEntry") -> list[dict[str, Any]]:
    from envs.registry import BUILT_IN
    from envs.task import GENERATED

    environment = entry.load()(cli.settings.benchmarks)
    rows = []
    for split, tasks in environment.splits.items():
        real = split != GENERATED
        kinds = {task.capability for task in environment.tasks(split)} if real else set()
        rows.append(
            {
                "env": entry.name,
                "tasks": tasks,
                "source": str(environment.benchmarks)
                if real and entry.source == BUILT_IN
                else entry.source,
                "split": split,
                "capabilities": sorted(kinds) if real else list(environment.capabilities),
                "reason": None,
            }
        )
    return rows


_SHOWN_MISMATCHES = 20
"""Mismatches of a replay that the table shows; `--json` has all of them."""

_SHOWN_VALUE = 160
"""Most characters of a value in that table."""

Domain = Annotated[str, typer.Option("--env", metavar="E", help="retail, airline or telecom.")]


@command(group)
def new(
    cli: Cli, name: Annotated[str, typer.Argument(help="Small letters, digits and _.")]
) -> None:
    """Write NAME.py here: a small environment that works, to be made yours."""
    text = _skeleton(name, _read_sources(cli))
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


def _read_sources(cli: Cli) -> dict[str, str]:
    from envs.registry import environments

    return {entry.name: entry.source for entry in environments(cli.settings.environments.paths)}


def _skeleton(name: str, taken: Mapping[str, str]) -> str:
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
        report = checking.check(sample, advance)
    if cli.out.json:
        cli.out.document(_as_document(report))
    else:
        cli.out.show(_rates(report), *_conclusions(report))
    return FAILED if report.problems else DONE


def _as_document(report: "Check") -> dict[str, Any]:
    return {
        "env": report.environment,
        "split": report.split,
        "judged": report.judged,
        "digest": report.digest,
        "deterministic": report.deterministic,
        **asdict(report.overall),
        "capabilities": {name: asdict(rates) for name, rates in report.capabilities.items()},
        "problems": list(report.problems),
        "winnable": [{"capability": kind, **asdict(win)} for kind, win in report.winnable.items()],
        "constant": list(report.constant),
        "skipped": {kind: list(trial.inapplicable) for kind, trial in report.bank.trials.items()},
    }


def _rates(report: "Check") -> Any:
    rows = [_row(name, rates) for name, rates in report.capabilities.items()]
    rows.append(_row("all", report.overall))
    numbers = ["tasks", "oracle", "null", "random"]
    return table(["capability", *numbers], rows, right=numbers, whole=["capability"])


def _row(name: str, rates: "Rates") -> list[Any]:
    means = (rates.oracle, rates.null, rates.random)
    return [name, f"{rates.tasks:,}", *(None if mean is None else f"{mean:.2f}" for mean in means)]


def _conclusions(report: "Check") -> list[str]:
    lines = [f"deterministic: {'yes' if report.deterministic else 'no'}"]
    if not report.judged:
        lines.append("the tasks were loaded, so their rates are not judged")
    if report.overall.unjudged:
        lines.append(f"{report.overall.unjudged} tasks need a judge; the rates leave them out")
    lines += _describe_bank(report)
    if not report.problems:
        return ["", *lines, "no problems"]
    count = len(report.problems)
    heading = f"{count} problem{'s' if count > 1 else ''}:"
    return ["", *lines, heading, *map(_bullet, report.problems)]


def _describe_bank(report: "Check") -> list[str]:
    lines = []
    if trials := report.bank.trials.values():
        best = max((trial.best for trial in trials), key=lambda win: win.wins / win.tasks)
        played = len(set.union(*(set(trial.wins) for trial in trials)))
        lines.append(
            f"cheaters: {played} played, the best wins {best.wins} of {best.tasks} tasks of a kind"
        )
        if idle := set.intersection(*(set(trial.inapplicable) for trial in trials)):
            lines.append(f"{len(idle)} cheaters apply to no kind here (--json names them)")
    if report.constant:
        lines.append(f"constant kinds, which no cheater plays: {', '.join(report.constant)}")
    return lines


def _bullet(problem: str) -> str:
    return f"- {plain_line(problem)}"


@command(group)
def replay(
    cli: Cli,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="JSON Lines.")
    ],
    env: Annotated[
        str, typer.Option("--env", metavar="E", help="Its name, as retail, airline or telecom.")
    ],
) -> int | None:
    """Replay recorded tool calls on the state of their task and compare everything.

    A row is of the real tasks, or of one that was added (kintsugi tasks add).
    """
    from daemon.core.task_definitions import with_definitions
    from envs.tau2.golden import replay as replayed

    with cli.app() as app, file.open(encoding="utf-8", errors="replace") as lines:
        report = replayed(with_definitions(app, load_environment(cli, env)), lines)
    if not report.rows:
        cli.out.warn(f"{file} has no rows, so nothing was compared; name a file of recorded calls")
    if cli.out.json:
        cli.out.document(asdict(report))
    else:
        if report.mismatches:
            rows = [_cells(asdict(mismatch)) for mismatch in report.mismatches[:_SHOWN_MISMATCHES]]
            cli.out.show(table(["row", "call", "what", "expected", "actual"], rows), "")
        cli.out.show(
            f"{report.equal:,} of {report.calls:,} calls in {report.rows:,} rows are equal, "
            f"{len(report.mismatches):,} values differ"
        )
    if not report.rows:
        return FAILED
    return PARTLY if report.mismatches else None


@command(group)
def gold(
    cli: Cli,
    env: Domain,
    split: Annotated[
        str, typer.Option(metavar="S", help="base, train or test; of telecom also small.")
    ] = "base",
    solo: Annotated[
        bool, typer.Option("--solo", help="For an agent that works alone from a ticket: telecom.")
    ] = False,
) -> int | None:
    """Play the gold actions of real tasks through whole episodes and grade them."""
    from envs.tau2.gold import play_gold

    report = play_gold(_real(cli, env), split, solo=solo)
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

    Also names the simulations that the rules of generated tasks judge otherwise (`verdicts`).
    Exit 3 when a recorded verdict does not follow, a file seems mislabelled, or something cannot be
    read.
    """
    from daemon.maintenance.regrade import regrade as regraded
    from envs.registry import open_environment
    from producers.importers.importer import total_bytes

    # The environments' names come from files of other programs.
    environment = cache(
        partial(
            open_environment,
            benchmarks=cli.settings.benchmarks,
            paths=cli.settings.environments.paths,
        )
    )
    with cli.out.progress("Grading again", total_bytes(paths), "bytes") as advance:
        reports = list(regraded(paths, environment, advance))
    if cli.out.json:
        cli.out.document([asdict(report) for report in reports])
    else:
        cli.out.show(*_agreement(reports))
    return DONE if all(report.in_order for report in reports) else PARTLY


def _agreement(reports: Sequence["RegradeReport"]) -> list[Any]:
    numbers = ["simulations", "graded", "agree"]
    cells = [
        [
            report.file,
            report.env,
            f"{report.simulations:,}",
            f"{report.graded:,}",
            f"{report.agree:,}",
        ]
        for report in reports
    ]
    remarks = [
        *(f"{report.file}: {report.why}" for report in reports if report.why),
        *(
            f"{wrong.task} was {_verdict(wrong.recorded)}, is {_verdict(wrong.ours)} "
            f"({wrong.rollout}): {wrong.why}"
            for report in reports
            for wrong in report.disagree
            if not report.mislabelled
        ),
        *(
            f"{row.task} is {_verdict(row.benchmark)} by the benchmark's rules and "
            f"{_verdict(row.ours)} by ours ({row.rollout}): {row.why}"
            for report in reports
            for row in report.differ
        ),
        *(
            f"{bad.file}, {bad.position}: {bad.reason}"
            for report in reports
            for bad in report.rejected
        ),
    ]
    return [table(["file", "env", *numbers], cells, right=numbers), "", *map(_bullet, remarks)]


def _verdict(success: bool) -> str:
    return "a success" if success else "a failure"


def _real(cli: Cli, name: str) -> "Tau2Environment":
    from envs.tau2.environment import Tau2Environment

    environment = load_environment(cli, name)
    if not isinstance(environment, Tau2Environment):
        raise typer.BadParameter(
            f"{name} has no real tasks; give retail, airline or telecom", param_hint="--env"
        )
    return environment


def _cells(mismatch: dict[str, Any]) -> list[str]:
    return ["" if value is None else str(value)[:_SHOWN_VALUE] for value in mismatch.values()]
