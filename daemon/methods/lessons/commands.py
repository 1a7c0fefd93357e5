"""`kintsugi lessons`: practice in repairing a failed call; list, read, make or mend it."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from daemon.cli.command import DONE, PARTLY, Cli, OnlyAgent, command, noun
from daemon.cli.output import Columns, facts, plain, plain_line, table
from daemon.cli.serving import ActorName, WhyNot, act_of
from daemon.cli.tasks import (
    BaseName,
    Named,
    OfAgent,
    OnlyEnvironment,
    UnknownTaskId,
    add_definitions,
    build_task_document,
    find_environment_of,
    find_task_line,
    open_additions,
    read_definition,
    resolve_target,
    shorten_id,
)
from events.errors import KintsugiError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from consumers.methods.lessons.reads import StoredLesson
    from consumers.reads.learning import TaskLine
    from daemon.core.app import App
    from daemon.proposer.additions import Addition, Additions, RawDefinition, Refusal
    from envs.environment import Environment
    from envs.lessons.making import LessonReport
    from envs.task import TaskDefinition
    from events.messages import Message

group = noun("lessons", "Practice in repairing a failed call; list, read, make or mend it.")

EDIT: Final = "lessons edit"
"""Name of the operator's action that rewrites a lesson; its arguments are `alias` and `task`."""
_MOST: Final = 100_000


class NoLessonsHere(KintsugiError):
    """No lesson can be made, or the task has no lesson."""


@command(group)
def ls(cli: Cli, alias: OnlyAgent = None, env: OnlyEnvironment = None) -> None:
    """List the tasks that have a lesson, in the order of the log."""
    from consumers.methods.lessons.reads import read_lessons
    from consumers.reads.learning import list_task_lines

    with cli.app() as app, app.reading() as connection:
        lessons = read_lessons(connection, alias)
        lines = [line for line in list_task_lines(connection, alias) if line.task in lessons]
    lines = [line for line in lines if env is None or find_environment_of(line) == env]
    columns = Columns(
        ("lesson", shorten_id), "alias", ("operator", lambda line: lessons[line.task].operator),
        ("source task", lambda line: lessons[line.task].source),
        ("split", lambda line: _find_split(lessons[line.task])), "state",
        ("rollout", lambda line: lessons[line.task].rollout),
        whole=("lesson", "state"),
    )  # fmt: skip
    cli.out.show_rows(
        lines,
        columns,
        nothing="there is no such lesson; make some: kintsugi lessons make --env E",
        describe=lambda line: _build_document(line, lessons[line.task]),
    )


def _find_split(lesson: "StoredLesson") -> str:
    from envs.task import find_split

    return find_split(lesson.source)


_FIELDS: Final = Columns(
    "operator", ("source_task", "source"), ("split", _find_split), "rollout", "reflection",
    ("sealed", lambda lesson: lesson.keyid is not None),
)  # fmt: skip


def _build_document(line: "TaskLine", lesson: "StoredLesson") -> dict[str, Any]:
    return {**build_task_document(line), **_FIELDS.document(lesson)}


@command(group)
def show(cli: Cli, lesson: Named, alias: OfAgent = None) -> None:
    """Show one lesson: the conversation, the call that went wrong, and what is right."""
    from envs.lessons.checks import get_lesson
    from envs.lessons.gold import render_gold

    with cli.app() as app, app.reading() as connection:
        line, stored, task = _find_lesson(app, connection, lesson, alias)
    document = {
        **_build_document(line, stored),
        "reflection": get_lesson(task).reflection,
        "calls": [call.model_dump(mode="json") for call in get_lesson(task).calls],
        "final": get_lesson(task).final,
        "gold": render_gold(get_lesson(task)),
        "definition": task.model_dump(mode="json"),
    }
    if cli.out.json:
        cli.out.document(document)
        return
    told = ("task", "alias", "state", "reason", "operator", "source_task", "split", "rollout")
    cli.out.show(facts({name: document[name] for name in told if document[name]}), "")
    for message in task.prefix:
        cli.out.show(_write_message(message))
    cli.out.show("", render_gold(get_lesson(task)))


def _write_message(message: "Message") -> Any:
    from rich.text import Text

    failed = " (error)" if message.error else ""
    text = Text(f"{message.role}{failed}: ", "bold")
    text.append(plain(message.text))
    for call in message.tool_calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        text.append(f"\n    -> {plain_line(f'{call.name} {arguments}')}", "cyan")
    return text


def _find_lesson(
    app: "App", connection: "Connection", name: str, alias: str | None
) -> "tuple[TaskLine, StoredLesson, TaskDefinition]":
    """Return the lesson with this id or prefix of an id, decrypted if needed. Raise UnknownTaskId,
    NoLessonsHere, KeysUnavailable, and UnknownTask if it cannot be decrypted."""
    from consumers.methods.lessons.reads import read_lessons

    line = find_task_line(connection, name, alias)
    stored = read_lessons(connection, line.alias).get(line.task)
    if stored is None:
        raise NoLessonsHere(f"task {line.task} has no lesson; see kintsugi lessons ls")
    task = read_definition(app, connection, line.task)
    if task is None or task.lesson is None:
        raise UnknownTaskId(
            f"the body of {line.task} is no task of this version; make its lesson anew"
        )
    return line, stored, task


@command(group)
def make(
    cli: Cli,
    env: Annotated[
        str, typer.Option(metavar="E", help="Name or path of the environment of the tasks.")
    ],
    count: Annotated[int, typer.Option(min=1, max=_MOST, help="At most so many.")] = 100,
    seed: Annotated[int, typer.Option(help="Draws tasks and wrong calls.")] = 0,
    alias: Annotated[
        str | None, typer.Option(help="Whose lessons they become; default: the one agent's.")
    ] = None,
    base: BaseName = None,
    split: Annotated[
        Literal["train", "test"], typer.Option(help="Of which source tasks; test needs --out.")
    ] = "train",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, help="Write them as JSON Lines, and add none."
        ),
    ] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Add again those that were retired.")
    ] = False,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> int:
    """Make lessons of recorded failed calls, then of perturbed ones, and add them as tasks.

    The recorded ones are of the agent's live and training rollouts, the others of fresh tasks.
    """  # fmt: skip
    from consumers.folds.task_states import RETIRED
    from consumers.reads.learning import read_inactive_tasks
    from daemon.cli.environments import load_environment
    from daemon.core.task_definitions import with_definitions
    from daemon.methods.lessons.writer import RecordingReader, draw_sources, seal_lessons
    from daemon.proposer.task_buffer import TaskWriter
    from envs.lessons.making import make_lessons

    if split == "test" and out is None:
        raise typer.BadParameter(
            "no job draws lessons that are kept for tests; write them to a file with --out",
            param_hint="--split",
        )
    environment = load_environment(cli, env)
    ids: list[str] = []
    refused: list[Refusal] = []
    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            target = resolve_target(cli, connection, alias, base, None)
            additions = open_additions(cli, app, connection, target.alias, env)
            states = read_inactive_tasks(connection, target.alias)
        reader = RecordingReader(app, target.alias, with_definitions(app, environment), split)
        sources = draw_sources(environment, split, seed, max(64, 2 * count))
        report = make_lessons(environment, sources, count, seed, reader.read())
        if not report.lessons:
            raise NoLessonsHere(_explain_none(environment, report))
        lessons = seal_lessons(report.lessons, reader.keys)
        keys = {task: key for task, (_, key) in lessons.items() if key is not None}
        made = [task for task, _ in lessons.values()]
        retired = 0
        if out is None:
            if not restore:
                # An operator retired them, or rewrote their reflection.
                made = [task for task in made if states.get(task.id) != RETIRED]
                retired = len(lessons) - len(made)
            additions.keys.update(keys)
            writer = TaskWriter(app, act_of(actor, reason), target)
            ids, refused = add_definitions(cli, additions, _write_definitions(made), writer)
        else:
            made = [task for task in made if task.id not in keys]
            if keys:
                cli.out.warn(
                    f"{len(keys):,} lessons made of persons' sessions are not written: only a home "
                    "keeps them sealed"
                )
            _write_file(out, made)
    printed = _Made(report, reader.left_out, ids, refused, len(keys), retired)
    return _print_lessons(cli, printed, out, len(made))


def _explain_none(environment: "Environment", report: "LessonReport") -> str:
    if not environment.capabilities:
        return (
            f"environment {environment.name} generates no tasks to make lessons of, and no "
            "recorded rollout gave one"
        )
    reasons = [*report.troubles, *report.unused]
    reasons += [reason for counts in report.discarded.values() for reason in counts]
    why = "; ".join(dict.fromkeys(reasons)) or "no source was drawn"
    return f"environment {environment.name} gave no lesson: {why}"


def _write_definitions(lessons: "Sequence[TaskDefinition]") -> "Iterator[RawDefinition]":
    from daemon.proposer.additions import RawDefinition
    from daemon.proposer.candidate import MOST_BODY

    for number, task in enumerate(lessons, start=1):
        text = task.model_dump_json().encode()
        yield RawDefinition(f"lesson {number}", text if len(text) <= MOST_BODY else None)


def _write_file(out: Path, lessons: "Sequence[TaskDefinition]") -> None:
    """Write the definitions to the file. Raise NoLessonsHere if that fails."""
    lines = "".join(f"{task.model_dump_json()}\n" for task in lessons)
    try:
        out.write_text(lines, encoding="utf-8")
    except OSError as error:
        raise NoLessonsHere(f"{out} cannot be written: {error.strerror}; name another") from error


@dataclass(frozen=True, slots=True)
class _Made:
    report: "LessonReport"
    left_out: "Counter[str]"
    ids: "list[str]"
    refused: "list[Refusal]"
    sealed: int
    """Number of lessons made of persons' sessions."""
    retired: int
    """Number of lessons that are not added because they were retired before."""


def _print_lessons(cli: Cli, made: _Made, out: Path | None, lines: int) -> int:
    """Print the result; `lines` is the number of lessons in the file `out`."""
    report, left_out, ids, refused = made.report, made.left_out, made.ids, made.refused
    for item in refused[:5]:
        cli.out.warn(f"{item.position}: {item.check}: {item.reason}")
    if report.empty:
        cli.out.warn(f"no lesson was made by: {', '.join(report.empty)}")
    for trouble in report.troubles:
        cli.out.warn(trouble)
    if made.retired:
        cli.out.warn(
            f"{made.retired:,} lessons were retired and stay so; --restore adds them again"
        )
    if cli.out.json:
        cli.out.document(
            {
                "added": ids,
                "rejected": [asdict(item) for item in refused],
                "made": report.made,
                "sealed": made.sealed,
                "retired": made.retired,
                "discarded": report.discarded,
                "unused": report.unused,
                "left_out": dict(left_out),
                "empty": list(report.empty),
                "file": None if out is None else str(out),
            }
        )
    else:
        rows: list[list[Any]] = [
            [operator, reason, number]
            for operator, counts in report.discarded.items()
            for reason, number in counts.items()
        ]
        rows += [["task", reason, number] for reason, number in report.unused.items()]
        rows += [["recorded rollout", reason, number] for reason, number in left_out.items()]
        if rows:
            cli.out.show(table(["discarded", "because", "number"], rows, right=("number",)), "")
        counts = ", ".join(f"{operator} {number:,}" for operator, number in report.made.items())
        where = f"wrote {lines:,} to {out}" if out else f"added {len(ids):,}"
        cli.out.show(f"made {counts}; {where}, rejected {len(refused):,}")
    return PARTLY if refused else DONE


@command(group)
def edit(
    cli: Cli,
    lesson: Named,
    reflection: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The new reflection; - reads stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="File that has it."),
    ] = None,
    alias: OfAgent = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Write a lesson anew with your reflection: the new one is added, the old one retired."""
    from consumers.folds.task_states import ACTIVE
    from consumers.reads.learning import patterns_of, read_inactive_tasks
    from daemon.proposer.task_buffer import Target, replace_task
    from envs.sealed_body import salt_task
    from events.learning import OPERATOR

    text = _read_reflection(reflection, file)
    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            line, before, task = _find_lesson(app, connection, lesson, alias)
            patterns = patterns_of(connection, line.alias)
            inactive = read_inactive_tasks(connection, line.alias)
            additions = open_additions(cli, app, connection, line.alias, None, without=line.task)
        edited, key = _edit(task, text), None
        if before.keyid is not None and (key := app.find_key(before.keyid)) is not None:
            edited = salt_task(edited, key)
            additions.keys[edited.id] = key
        is_there = edited.id in patterns and edited.id not in inactive
        if line.state != ACTIVE and not is_there:
            raise NoLessonsHere(
                f"{line.task} is {line.state}; edit a lesson that jobs draw, or add it again"
            )
        if edited.id != task.id:
            pattern = patterns.get(line.task, OPERATOR)
            target = Target(
                line.alias, line.base or "unknown", None if pattern == OPERATOR else pattern
            )
            addition = _examine(additions, edited)
            replaced = line.task if line.state == ACTIVE else None
            replace_task(app, act_of(actor, reason), EDIT, target, addition, replaced)
        with app.reading() as connection:
            new_line, stored, _ = _find_lesson(app, connection, edited.id, line.alias)
    document = {**_build_document(new_line, stored), "reflection": text, "replaces": task.id}
    sentence = f"{edited.id} is in place of {task.id}"
    if edited.id == task.id:
        sentence = f"{task.id} has this reflection already"
    cli.out.report(document, sentence)


def _read_reflection(reflection: str | None, file: Path | None) -> str:
    """Return the new reflection (option, stdin or file). Raise BadParameter, NoLessonsHere."""
    if (reflection is None) == (file is None):
        raise typer.BadParameter("give one of --reflection and --file", param_hint="--reflection")
    if file is None:
        assert reflection is not None, "one of them is given"
        return (sys.stdin.read() if reflection == "-" else reflection).strip()
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoLessonsHere(f"{file} cannot be read as UTF-8: {error}; name another") from error


def _edit(task: "TaskDefinition", reflection: str) -> "TaskDefinition":
    """Return the lesson with the new reflection and its new id by content. Raise BadLesson."""
    from envs.lessons.checks import check_reflection, get_lesson

    check_reflection(reflection)
    lesson = get_lesson(task).model_copy(update={"reflection": reflection})
    return task.model_copy(update={"lesson": lesson}).name_by_content()


def _examine(additions: "Additions", task: "TaskDefinition") -> "Addition":
    """Check a lesson and return it as an addition. Raise NoLessonsHere if it fails a check."""
    from daemon.proposer.additions import RawDefinition, Refusal

    (item,) = additions.examine([RawDefinition("it", task.model_dump_json().encode())])
    if isinstance(item, Refusal):
        raise NoLessonsHere(f"the edited lesson fails the check {item.check}: {item.reason}")
    return item
