"""`kintsugi tasks`: the tasks that jobs draw beside the agent's traffic; add some, retire one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import DONE, PARTLY, Cli, OnlyAgent, check_name, command, noun
from daemon.cli.output import Columns, facts
from daemon.cli.serving import ActorName, WhyNot, act_of
from events.errors import KintsugiError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.learning import TaskLine
    from daemon.core.app import App
    from daemon.proposer.additions import Additions, RawDefinition, Refusal
    from daemon.proposer.candidate import PriorTask
    from daemon.proposer.task_buffer import Target, TaskWriter
    from envs.environment import Environment
    from envs.task import TaskDefinition
    from events.rollouts import Task

group = noun("tasks", "Tasks that jobs draw; add or retire some.")

Named = Annotated[str, typer.Argument(metavar="ID", help="Its id, or how that begins.")]
OfAgent = Annotated[
    str | None, typer.Option("--alias", help="Whose task; where several agents have it.")
]

OnlyEnvironment = Annotated[
    str | None, typer.Option("--env", metavar="E", help="Only of this environment.")
]
BaseName = Annotated[
    str | None, typer.Option("--base", help="Base model; default: that on which the agent runs.")
]

_SHOWN: Final = 5
"""Number of rejected definitions that stderr shows; `--json` has all."""
_DIGEST: Final = re.compile(r"(?<=/=)([0-9a-f]{12})[0-9a-f]{52}")


class UnknownTaskId(KintsugiError):
    """No task of an agent has this id, or several ids begin with this text."""


@command(group)
def ls(cli: Cli, alias: OnlyAgent = None, env: OnlyEnvironment = None) -> None:
    """List the tasks that cycles wrote and operators added, in the order of the log."""
    from consumers.reads.learning import list_task_lines

    with cli.app() as app, app.reading() as connection:
        lines = list_task_lines(connection, alias)
    lines = [line for line in lines if env is None or find_environment_of(line) == env]
    cli.out.show_rows(
        lines,
        _COLUMNS,
        nothing="there is no such task; add one: kintsugi tasks add FILE",
        describe=build_task_document,
    )


def find_environment_of(line: "TaskLine") -> str:
    """Return the name of a task's environment."""
    return line.environment or line.task.partition("/")[0]


_FIELDS: Final = Columns(
    "task", ("env", find_environment_of), "source", "state", "patterns", "alias", "base",
    "capability", "cycle", "reason",
)  # fmt: skip


def build_task_document(line: "TaskLine") -> dict[str, Any]:
    """Return a task's document as in `tasks ls --json`."""
    return _FIELDS.document(line)


def shorten_id(line: "TaskLine") -> str:
    """Return a task's id with its sha256 shortened; `tasks show` needs no more."""
    return _DIGEST.sub(r"\1", line.task)


_COLUMNS: Final = Columns(
    ("task", shorten_id), "alias", "capability", "source", "state",
    ("patterns", lambda line: ", ".join(line.patterns) or line.reason),
    whole=("task", "state"),
)  # fmt: skip


@command(group)
def show(cli: Cli, task: Named, alias: OfAgent = None) -> None:
    """Show one task: where it came from, its state, whose fault its rollouts were, and its whole
    definition."""
    from daemon.cli.methods import read_task_sections

    with cli.app() as app:
        with app.reading() as connection:
            line = find_task_line(connection, task, alias)
            written = _read_origin(connection, line)
            sections = read_task_sections(connection, line.task, line.alias)
            stored = read_definition(app, connection, line.task)
        definition = stored or _define(app, line.task)
    document = {
        **build_task_document(line),
        **written,
        **{name: section.document for name, section in sections.items()},
        "definition": None if definition is None else definition.model_dump(mode="json"),
    }
    if cli.out.json:
        cli.out.document(document)
        return
    apart = {*_TOLD_APART, *sections}
    shown = {name: value for name, value in document.items() if name not in apart}
    cli.out.show(
        facts(
            {
                **{name: value for name, value in shown.items() if value not in (None, "", [])},
                "patterns": ", ".join(line.patterns),
                "checks": ", ".join(check["check"] for check in written["verified"]),
            }
        )
    )
    for section in sections.values():
        if section.text:
            cli.out.show(section.text)
    if definition is None:
        cli.out.hint("its environment is not known here, so its definition is not shown")
    else:
        cli.out.show("", definition.model_dump_json(indent=2))


_TOLD_APART: Final = frozenset({"definition", "verified", "patterns"})


def _read_origin(connection: "Connection", line: "TaskLine") -> dict[str, Any]:
    """Return pattern, mode, plan, author, source and checks of a task, empty for a rejected one."""
    from consumers.reads.learning import tasks_of

    written = next(
        (row for row in tasks_of(connection, line.alias) if row.task.id == line.task), None
    )
    if written is None:
        names = ("pattern", "mode", "plans", "plan", "plan_revision", "by", "source_rollout")
        return {**dict.fromkeys(names), "verified": []}
    return {
        "pattern": written.pattern,
        "mode": written.mode,
        "plans": written.plans,
        "plan": written.plan,
        "plan_revision": written.plan_revision,
        "by": written.text_by,
        "source_rollout": written.source_rollout,
        "verified": [check.model_dump() for check in written.verified],
    }


def _define(app: "App", task: str) -> "TaskDefinition | None":
    from daemon.sessions.verdict import open_task

    opened = open_task(app, task)
    return None if opened is None else opened[1]


def find_task_line(
    connection: "Connection", task: str, alias: str | None, traffic: bool = False
) -> "TaskLine":
    """Return the task with this id or unique beginning of an id. `traffic` also searches the
    agent's traffic. Raise UnknownTaskId; raise BadParameter if several agents have the task."""
    from consumers.reads.learning import find_traffic_task, list_task_lines

    # A database may ignore case in comparisons.
    lines = [
        line
        for line in list_task_lines(connection, alias, beginning=task)
        if line.task.startswith(task)
    ]
    exact = [line for line in lines if line.task == task]
    lines = exact or lines
    if not lines and traffic:
        lines = find_traffic_task(connection, task, alias)
    ids = sorted({line.task for line in lines})
    if not task or not ids:
        whose = "" if alias is None else f" of alias {alias!r}"
        raise UnknownTaskId(
            f"no task{whose} was written or added whose id is {task[:200]!r} or begins so; see "
            "kintsugi tasks ls"
        )
    if len(ids) > 1:
        raise UnknownTaskId(
            f"several ids begin with {task!r}: {', '.join(ids[:3])}, ...; give more of it"
        )
    if len(lines) > 1:
        names = ", ".join(line.alias for line in lines)
        raise typer.BadParameter(f"{names} have {ids[0]}; name one of them", param_hint="--alias")
    return lines[0]


@command(group)
def add(
    cli: Cli,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A task definition, or JSON Lines of them.",
        ),
    ],
    alias: Annotated[
        str | None, typer.Option(help="Whose tasks they become; default: the one agent's.")
    ] = None,
    base: BaseName = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Failure pattern that they stress; default: none."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(metavar="E", help="Name or path of their environment; default: its name."),
    ] = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> int:
    """Add tasks, each checked as those are that a cycle writes; exit 3 when one was rejected.

    The next job draws them: with the tasks of the pattern that is named, or in a pool of their own.
    """  # fmt: skip
    from consumers.reads import learning
    from daemon.proposer.additions import read_definitions
    from daemon.proposer.task_buffer import TaskWriter

    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            target = resolve_target(cli, connection, alias, base, pattern)
            patterns = learning.patterns_of(connection, target.alias)
            additions = open_additions(cli, app, connection, target.alias, env)
        writer = TaskWriter(app, act_of(actor, reason), target)
        with file.open("rb") as opened:
            ids, refused = add_definitions(cli, additions, read_definitions(opened), writer)
    if pattern is not None:
        _warn_of_patterns(cli, {task: patterns.get(task, pattern) for task in ids}, pattern)
    return _print_additions(cli, file, ids, refused)


def add_definitions(
    cli: Cli, additions: "Additions", definitions: "Iterable[RawDefinition]", writer: "TaskWriter"
) -> "tuple[list[str], list[Refusal]]":
    """Append valid definitions; return ids and refusals. Raise LogError, DatabaseUnavailable."""
    from daemon.proposer.additions import Addition, Refusal

    ids: list[str] = []
    refused: list[Refusal] = []
    with cli.out.progress("Checking", None, "tasks") as advance:
        examined = additions.examine(definitions)
        while items := list(islice(examined, _AT_ONCE)):
            passed = [item for item in items if isinstance(item, Addition)]
            refused += [item for item in items if isinstance(item, Refusal)]
            ids += [item.task.id for item in passed]
            writer.append(passed)
            advance(len(items))
    return ids, refused


def _warn_of_patterns(cli: Cli, patterns: Mapping[str, str], wanted: str) -> None:
    for task, pattern in patterns.items():
        if pattern != wanted:
            cli.out.warn(f"{task} is there already, for {pattern}, and stays so")


_AT_ONCE: Final = 64
"""Number of definitions that are checked before those that passed are appended."""


def _print_additions(cli: Cli, file: Path, ids: Sequence[str], refused: "Sequence[Refusal]") -> int:
    for item in refused[:_SHOWN]:
        cli.out.warn(f"{file} {item.position}: {item.check}: {item.reason}")
    if len(refused) > _SHOWN:
        cli.out.warn(f"{len(refused) - _SHOWN:,} more definitions were rejected")
    if not ids and not refused:
        cli.out.warn(f"{file} has no definition; give one as JSON, or one in each line")
    if cli.out.json:
        cli.out.document({"added": list(ids), "rejected": [asdict(item) for item in refused]})
    else:
        cli.out.show(*ids, f"added {len(ids):,}, rejected {len(refused):,}")
    return PARTLY if refused else DONE


def resolve_target(
    cli: Cli, connection: "Connection", alias: str | None, base: str | None, pattern: str | None
) -> "Target":
    """Return the agent, base and pattern for which tasks are added. Raise BadParameter."""
    from consumers.reads import agents
    from consumers.reads.rollouts import pattern_lines
    from daemon.proposer.task_buffer import Target

    bases = {pair.alias: pair.base for pair in agents.present(connection)}
    names = sorted({*bases, *(agent.alias for agent in cli.settings.agents)})
    if alias is None:
        if len(names) > 1:
            raise typer.BadParameter(
                f"there are {', '.join(names)}; name one of them", param_hint="--alias"
            )
        alias = names[0] if names else "agent"
    for option, value in (("--alias", alias), ("--base", base)):
        if value is not None:
            check_name(option, value)
    if pattern is not None:
        patterns = sorted({line.pattern for line in pattern_lines(connection, alias)})
        if pattern not in patterns:
            raise typer.BadParameter(
                f"{alias} has no pattern {pattern[:200]!r}; it has: "
                f"{', '.join(patterns) or 'none'}",
                param_hint="--pattern",
            )
    if names and alias not in names:
        cli.out.warn(f"no agent is called {alias!r} yet; there are {', '.join(names)}")
    return Target(alias, base or bases.get(alias, "unknown"), pattern)


def open_additions(
    cli: Cli,
    app: "App",
    connection: "Connection",
    alias: str,
    env: str | None,
    without: str | None = None,
) -> "Additions":
    """Return the checker of definitions, for the named environment or those of the settings. It
    compares definitions with the agent's tasks, except the task `without`."""
    from consumers.reads import evidence, learning
    from daemon.cli.environments import load_environment
    from daemon.core.task_definitions import find_body_in
    from daemon.proposer.additions import Additions
    from daemon.proposer.candidate import Evaluation
    from envs.registry import open_environment
    from envs.task import signature

    settings = cli.settings
    configured = settings.find_agent(alias)
    trained_in = None if configured is None else configured.environment
    named = env or trained_in
    only = None if named is None else load_environment(cli, named)

    def open_named(name: str) -> "Environment":
        if only is not None:
            return only
        return open_environment(
            name, benchmarks=settings.benchmarks, paths=settings.environments.paths
        )

    inactive = learning.read_inactive_tasks(connection, alias)
    evaluated = evidence.read_evaluated_tasks(connection, alias)
    return Additions(
        open_named,
        known=learning.patterns_of(connection, alias).keys() - inactive.keys(),
        prior=[
            _read_prior(app, connection, row.task)
            for row in learning.tasks_of(connection, alias)
            if row.task.id not in inactive and row.task.id != without
        ],
        evaluation=Evaluation(signatures=frozenset(map(signature, evaluated))),
        find_body=find_body_in(app),
        trained_in=None if trained_in is None else load_environment(cli, trained_in).name,
    )


def _read_prior(app: "App", connection: "Connection", task: "Task") -> "PriorTask":
    """Return a task of the buffer from its body, or from its record if the body is unreadable."""
    from daemon.proposer.candidate import PriorTask
    from envs.environment import UnknownTask

    try:
        definition = read_definition(app, connection, task.id)
    except UnknownTask:
        definition = None
    if definition is not None:
        return PriorTask.of(definition)
    return PriorTask.from_record(task.gold_actions, task.instruction)


def read_definition(app: "App", connection: "Connection", task: str) -> "TaskDefinition | None":
    """Return a task's definition from its body; None if this version cannot read it. Raise
    KeysUnavailable; raise UnknownTask for an encrypted one that cannot be decrypted."""
    from daemon.core.task_definitions import read_open_body
    from envs.task import BadDefinition, is_content_id, read_body

    text = read_open_body(app, connection, task) if is_content_id(task) else None
    try:
        return None if text is None else read_body(task, text)
    except BadDefinition:
        return None


@command(group)
def retire(
    cli: Cli, task: Named, alias: OfAgent = None, actor: ActorName = None, reason: WhyNot = ""
) -> None:
    """Have no new job draw a task. It stays known, and adding it again brings it back."""
    from daemon.proposer.task_buffer import retire_task

    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            line = find_task_line(connection, task, alias, traffic=True)
        acted = None
        if line.state == "active":
            acted = retire_task(app, act_of(actor, reason), line.alias, line.task)
        with app.reading() as connection:
            line = find_task_line(connection, line.task, line.alias)
    before = "" if acted is not None else " already"
    why = f": {line.reason}" if line.reason else ""
    cli.out.report(
        {"acted": acted, **build_task_document(line)},
        f"{line.task} of {line.alias} is {line.state}{before}{why}",
    )
