"""`kintsugi rollouts`: list the agent's rollouts, and show one."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import AtMost, Cli, command, noun
from daemon.cli.output import facts, plain, plain_line, table

if TYPE_CHECKING:
    from consumers.reads.repairs import RepairRow
    from consumers.reads.rollouts import RolloutLine, Selection
    from daemon.sessions.transcript import Transcript
    from events.messages import Message

group = noun("rollouts", "What the agent did.")

_WIDE = 130
"""Terminal width from which there is room for whole ids."""

_SHOWN_ID = 13
"""Characters of a shortened id; `rollouts show` needs no more."""

_SYSTEM_CHARACTERS = 300
"""Characters shown of a system prompt, which every rollout repeats; `--full` shows all."""

_CALL_CHARACTERS = 2000
"""Characters shown of one call or finding: a broken model writes a megabyte of arguments."""

_COLUMNS = 120
"""Width of calls side by side if stdout is no terminal, since arguments are long."""

_ROLE_STYLES = {"user": "bold green", "assistant": "bold blue", "tool": "dim"}


@command(group)
def ls(
    cli: Cli,
    failed: Annotated[bool, typer.Option("--failed", help="Success is false.")] = False,
    passed: Annotated[bool, typer.Option("--passed", help="Success is true.")] = False,
    diagnosed: Annotated[bool, typer.Option("--diagnosed", help="A category is set.")] = False,
    limit: AtMost = None,
) -> None:
    """List rollouts, by time and then by id."""
    from consumers.reads.rollouts import count_backlog, rollout_lines

    selection = _selection(failed, passed, diagnosed)
    with cli.app() as app, app.reading() as connection:
        lines = rollout_lines(connection, selection, limit)
        recorded = count_backlog(connection).rollouts
    if cli.out.json:
        cli.out.document([asdict(line) for line in lines])
    elif lines:
        cli.out.show(_build_table(lines, wide=cli.out.columns >= _WIDE))
    if not recorded:
        cli.out.hint("no rollout is recorded yet: kintsugi import PATH")
    elif not lines:
        cli.out.hint(f"none of {recorded:,} rollouts is {selection}")


def _selection(failed: bool, passed: bool, diagnosed: bool) -> "Selection":
    chosen: list[Selection] = []
    chosen += ["failed"] if failed else []
    chosen += ["passed"] if passed else []
    chosen += ["diagnosed"] if diagnosed else []
    if len(chosen) > 1:
        raise typer.BadParameter(
            "they exclude each other; give one", param_hint=" and ".join(f"--{c}" for c in chosen)
        )
    return chosen[0] if chosen else "all"


def _build_table(lines: "list[RolloutLine]", wide: bool) -> Any:
    rows = [
        [
            line.rollout if wide else line.rollout[:_SHOWN_ID],
            line.task,
            line.trial,
            verdict(line.success),
            _number(line.reward),
            line.category,
            *([line.policy, line.source] if wide else []),
        ]
        for line in lines
    ]
    columns = ["rollout", "task", "trial", "success", "reward", "category"]
    return table(
        [*columns, *(["policy", "source"] if wide else [])],
        rows,
        right=("trial", "reward"),
        whole=("rollout", "success", "category"),
    )


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def verdict(success: bool | None) -> Any:
    """Return the verdict as a coloured word."""
    from rich.text import Text

    if success is None:
        return Text("unjudged", "dim")
    return Text("passed", "green") if success else Text("failed", "red")


@command(group)
def show(
    cli: Cli,
    rollout: Annotated[str, typer.Argument(metavar="ID", help="Its id, or how it begins.")],
    full: Annotated[bool, typer.Option("--full", help="Long texts in full.")] = False,
) -> None:
    """Show one rollout: transcript, gold beside actual calls, evidence of why it failed."""
    from daemon.sessions.transcript import find, read

    with cli.app() as app:
        with app.reading() as connection:
            row = find(connection, rollout)
        transcript = read(row, app.readable_log, app.bodies)
    if cli.out.json:
        cli.out.document(_document(transcript))
        return
    cli.out.show(_head(transcript), "")
    if transcript.erased:
        cli.out.hint("what was said is erased: its person's key was destroyed")
    if transcript.row.repair is not None:
        cli.out.show(_title("Repair"), _repair(transcript.row.repair), "", columns=_COLUMNS)
    if transcript.row.evidence:
        cli.out.show(_title("Evidence"), _evidence(transcript, full), "", columns=_COLUMNS)
    cli.out.show(_title("Calls: expected and made"), _calls(transcript, full), "", columns=_COLUMNS)
    cli.out.show(_title("Transcript"))
    evidence = transcript.evidence_turns
    for turn, message in enumerate(transcript.messages):
        cli.out.show(_message(turn, message, turn in evidence, full))


def _document(transcript: "Transcript") -> dict[str, Any]:
    row, gold = transcript.row, transcript.gold
    return {
        **asdict(row.line),
        "alias": row.alias,
        "base": row.base,
        "environment": row.environment,
        "termination": row.termination,
        "reason": transcript.data.reason,
        "time": row.time,
        "grader": transcript.data.grader,
        "has_older_rules": row.has_older_rules,
        "pivot": row.pivot,
        "rule": None if row.rule_category is None else f"{row.rule_category}|{row.rule_pivot}",
        "repair": None if row.repair is None else asdict(row.repair),
        "evidence": row.evidence,
        "round": row.round,
        "erased": transcript.erased,
        "instruction": transcript.data.task.instruction if transcript.data.task else None,
        "messages": [
            message.model_dump(mode="json", exclude_defaults=True)
            for message in transcript.messages
        ],
        "gold_actions": None if gold is None else [a.model_dump(mode="json") for a in gold],
        "executed_actions": [
            {
                "name": call.call.name,
                "arguments": call.call.arguments,
                "requestor": call.requestor,
                "turn": call.turn,
                "failed": call.failed,
                "result": None if call.result is None else call.result.text,
            }
            for call in transcript.tool_calls
        ],
    }


def _title(text: str) -> Any:
    from rich.text import Text

    return Text(text, "bold underline")


def _head(transcript: "Transcript") -> Any:
    row = transcript.row
    line = row.line
    trial = "" if line.trial is None else f", trial {line.trial}"
    values: dict[str, Any] = {
        "rollout": line.rollout,
        "task": f"{line.task or 'unknown'}{trial}",
        "agent": f"{row.alias} ({row.base}), policy {line.policy}",
        "source": line.source + (f", {row.time}" if row.time else ""),
        "verdict": verdict(line.success),
        "reward": _number(line.reward) or "none",
        **{
            f"by {other['source']}": verdict(other["success"]).append(f" ({other['reason']})")
            for other in line.verdicts
        },
    }
    if transcript.data.grader is not None:
        older = ", older rules than those that its kind of task has" * row.has_older_rules
        values["judged by"] = f"{transcript.data.grader}{older}"
    if line.category is not None:
        values["category"] = f"{line.category} at {row.pivot}"
        others = [name for name in line.categories if name != line.category]
        if row.rule_category != line.category or row.rule_pivot != row.pivot:
            values["by the rules"] = f"{row.rule_category} at {row.rule_pivot}"
        if others:
            values["also"] = ", ".join(others)
    if row.termination:
        reason = transcript.data.reason
        values["ended by"] = f"{row.termination}: {reason}" if reason else row.termination
    return facts(values)


def _evidence(transcript: "Transcript", full: bool) -> Any:
    from daemon.cli.output import as_json

    evidence = transcript.row.evidence
    return table(
        ["category", "what shows it"],
        [
            [category, as_json(finding) if full else _cut(as_json(finding), _CALL_CHARACTERS)]
            for category in transcript.row.line.categories
            for finding in evidence.get(category) or [{}]
        ],
    )


def _repair(repair: "RepairRow") -> Any:
    replays = f"{repair.replays} replays"
    if repair.outcome == "repaired":
        return table(
            ["", f"the smallest change that makes the state right, {replays}"],
            [[str(n), _describe_edit(edit)] for n, edit in enumerate(repair.edits, start=1)],
        )
    said = {
        "state_right": "the state is right as it is; no change of the calls is needed",
        "exhausted": f"no change makes the state right: {repair.reason}, {replays}",
        "skipped": f"it could not be replayed: {repair.reason}",
    }
    return said.get(repair.outcome, repair.outcome)


def _describe_edit(edit: dict[str, Any]) -> str:
    place = f"[{edit['turn']}] {edit['tool']}" if "turn" in edit else edit["tool"]
    gold = f"gold action {edit.get('gold')}"
    return {
        "drop": f"leave out {place}",
        "arguments": f"{place} with other {', '.join(edit.get('arguments', ()))}, as {gold}",
        "tool": f"{edit.get('expected')} in place of {place}, as {gold}",
        "insert": f"add {place}, as {gold}",
    }[edit["operation"]]


def _calls(transcript: "Transcript", full: bool) -> Any:
    from daemon.sessions.transcript import same_call

    gold, executed = transcript.gold, transcript.tool_calls
    matched = {
        place
        for action in gold or ()
        for place, call in enumerate(executed)
        if same_call(action, call) and not call.failed
    }
    left = (
        ["nobody wrote them down"]
        if gold is None
        else [_format_call(a.name, a.arguments, a.requestor, full) for a in gold]
        or ["nothing to call"]
    )
    right = [
        f"{'✗' if call.failed else '✓' if place in matched else ' '} [{call.turn}] "
        + _format_call(call.call.name, call.call.arguments, call.requestor, full)
        for place, call in enumerate(executed)
    ] or ["nothing was called"]
    rows = [
        [left[i] if i < len(left) else None, right[i] if i < len(right) else None]
        for i in range(max(len(left), len(right)))
    ]
    return table(["expected", "made (✓ as expected, ✗ answered with an error)"], rows)


def _format_call(name: str, arguments: Any, requestor: str, full: bool) -> str:
    from daemon.cli.output import as_json

    inside = (
        ", ".join(f"{key}={as_json(value)}" for key, value in arguments.items())
        if isinstance(arguments, dict)
        else repr(arguments)
    )
    written = f"{'user: ' if requestor == 'user' else ''}{name}({inside})"
    return written if full else _cut(written, _CALL_CHARACTERS)


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return f"{text[:length]}... ({len(text) - length:,} characters more with --full)"


def _message(turn: int, message: "Message", is_evidence: bool, full: bool) -> Any:
    from rich.text import Text

    text = Text("▶ " if is_evidence else "  ", "bold red")
    text.append(f"[{turn}] ", "bold red" if is_evidence else "dim")
    named = f" {plain_line(message.name)}" if message.name else ""
    text.append(f"{message.role}{named}: ", _ROLE_STYLES.get(message.role, "bold"))
    content = plain(message.text)
    if message.role in ("system", "developer") and not full:
        content = _cut(content, _SYSTEM_CHARACTERS)
    text.append(content, "red" if message.error else "")
    requestor = "user" if message.role == "user" else "assistant"
    for call in message.tool_calls:
        written = plain_line(_format_call(call.name, call.arguments, requestor, full))
        text.append(f"\n      → {written}", "cyan")
    return text
