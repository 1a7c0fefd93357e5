"""A transcript in ToolSandbox's form: the rows of a conversation, and the tables after each row.

    user -> agent            words of the user
    agent -> user            words of the agent
    agent -> environment     one row per call
    environment -> agent     one row per answer, with the trace of a call that did not fail
    user -> environment      the user ends the conversation

Only the opening and 30 more rows count, as in the original. All calls of a message have taken
effect when the first of their answers appears. The tables come from a replay of the calls on a
fresh state, so a transcript is enough.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envs.database import Database
from envs.milestones.graph import CONVERSATION
from envs.tools import unusable
from envs.toolsandbox.device.state import COLUMNS, Row, read_rows
from envs.toolsandbox.device.tools import ToolSandboxTools
from envs.users import STOP_TOKENS
from events.canonical import exact_json
from events.messages import Message, ToolCall

USER: Final = "USER"
AGENT: Final = "AGENT"
ENVIRONMENT: Final = "EXECUTION_ENVIRONMENT"

ROW_COLUMNS: Final = ("sender", "recipient", "content", "tool_trace")
"""Columns of the conversation's table."""

MOST_ROWS: Final = 31
"""Rows that count: the opening and 30 more. A message that exceeds the limit counts as a whole."""

Versions = dict[str, int]
"""Table -> number of its version. Equal numbers mean equal rows."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A successful call, with its result."""

    name: str
    arguments: dict[str, Any]
    """The arguments, with defaults for those left out."""
    result: Any


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment: a row of the conversation, and the versions of the tables at this time."""

    sender: str
    recipient: str
    content: str
    trace: Trace | None
    versions: Versions


class Recording:
    """The moments of a transcript, made by a replay."""

    def __init__(self, messages: Sequence[Message], database: Database) -> None:
        """Replay the messages on `database`, a fresh state of the task, which is changed."""
        self._tools = ToolSandboxTools(database)
        self._database = database
        self._tables: list[tuple[Row, ...]] = []
        """Version number -> rows."""
        self._current: Versions = {}
        self.snapshots: list[Snapshot] = []
        self._note_tables()
        begun = False
        for message in messages:
            # Messages of the agent before the user's first one belong to no moment.
            begun = begun or message.role == "user"
            if begun and len(self.snapshots) < MOST_ROWS:
                self._add(message)

    def read_table(self, snapshot: Snapshot, table: str) -> tuple[Row, ...]:
        """Return a table's rows at a moment. For the conversation, return only the moment's row."""
        if table == CONVERSATION:
            return (
                {
                    "sender": snapshot.sender,
                    "recipient": snapshot.recipient,
                    "content": snapshot.content,
                    "tool_trace": snapshot.trace,
                },
            )
        return self._tables[snapshot.versions[table]]

    def _add(self, message: Message) -> None:
        if message.role == "user":
            ends = any(token in message.text for token in STOP_TOKENS)
            self._append(USER, ENVIRONMENT if ends else AGENT, message.text)
        elif message.role == "assistant" and message.tool_calls:
            self._add_calls(message.tool_calls)
        elif message.role == "assistant":
            self._append(AGENT, USER, message.text)

    def _add_calls(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            self._append(AGENT, ENVIRONMENT, _write_call(call))
        answers = list(self._run(calls))
        self._note_tables()
        for content, trace in answers:
            self._append(ENVIRONMENT, AGENT, content, trace)

    def _run(self, calls: Sequence[ToolCall]) -> Iterator[tuple[str, Trace | None]]:
        for call in calls:
            result = self._tools.call(call.name, call.arguments)
            if result.error or isinstance(call.arguments, str):
                yield result.content, None
                continue
            arguments = self._tools.complete(call.name, call.arguments)
            yield result.content, Trace(call.name, arguments, self._tools.value)

    def _append(
        self, sender: str, recipient: str, content: str, trace: Trace | None = None
    ) -> None:
        self.snapshots.append(Snapshot(sender, recipient, content, trace, dict(self._current)))

    def _note_tables(self) -> None:
        for table in COLUMNS:
            rows = tuple(dict(row) for row in read_rows(self._database, table))
            known = self._current.get(table)
            if known is None or self._tables[known] != rows:
                self._current[table] = len(self._tables)
                self._tables.append(rows)


def _write_call(call: ToolCall) -> str:
    arguments = call.arguments
    if isinstance(arguments, str):
        return f"{call.name}({arguments})"
    return f"{call.name}({exact_json(arguments) if unusable(arguments) is None else ''})"
