"""Derive a perfect agent's calls from a scenario's milestones.

Milestones are taken in an order that the edges allow. For a required state, the plan calls the tool
that writes it; a required call is made; required texts are said at the end. The calls run on a
separate state, so that later milestones can use values from results. If a milestone needs a tool
that the scenario does not allow, no agent reaches it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envs.agents import call, count_done
from envs.database import Database
from envs.milestones.graph import CONVERSATION, Constraint, Milestone
from envs.toolsandbox.device.state import (
    CONTACT,
    MESSAGING,
    REMINDER,
    SETTING,
    Row,
    build_tables,
    read_setting,
    read_time,
)
from envs.toolsandbox.device.tools import ToolSandboxTools
from envs.toolsandbox.extractors import extract
from envs.toolsandbox.scenarios import LoadedScenario
from envs.toolsandbox.similarity import parse_traces
from envs.toolsandbox.snapshots import AGENT, USER, Trace
from events.messages import Action, Message

REFUSAL: Final = "I cannot do this: a tool or a value that it needs is missing."
"""A perfect agent's words if the wish cannot be fulfilled."""

_SWITCHES: Final[Mapping[str, str]] = {
    "cellular": "set_cellular_service_status",
    "wifi": "set_wifi_status",
    "location_service": "set_location_service_status",
    "low_battery_mode": "set_low_battery_mode_status",
}

_WRITES: Final[Mapping[tuple[str, str], tuple[str, tuple[str, ...]]]] = {
    (CONTACT, "addition"): ("add_contact", ("name", "phone_number", "relationship", "is_self")),
    (CONTACT, "update"): (
        "modify_contact",
        ("person_id", "name", "phone_number", "relationship", "is_self"),
    ),
    (CONTACT, "removal"): ("remove_contact", ("person_id",)),
    (REMINDER, "addition"): (
        "add_reminder",
        ("content", "reminder_timestamp", "latitude", "longitude"),
    ),
    (REMINDER, "update"): (
        "modify_reminder",
        ("reminder_id", "content", "reminder_timestamp", "latitude", "longitude"),
    ),
    (REMINDER, "removal"): ("remove_reminder", ("reminder_id",)),
    (MESSAGING, "addition"): ("send_message_with_phone_number", ("phone_number", "content")),
}
"""Required change of a table -> the tool that makes it, and the tool's arguments."""

_COLUMN_OF: Final = {"phone_number": "recipient_phone_number"}
"""Argument of the tool that sends messages -> the column with its value."""

_PRECISION: Final = 1
"""Number of digits after the point with which a number is said."""


@dataclass(frozen=True, slots=True)
class GoldPlan:
    """A perfect agent's calls and words."""

    actions: tuple[Action, ...]
    says: tuple[str, ...]
    """Its messages after the calls."""
    outputs: tuple[str, ...]
    """Texts that these messages must contain, without commas."""


class PlanAgent:
    """Makes a plan's calls without asking for a yes, then says its texts one by one."""

    def __init__(self, plan: GoldPlan, question: str | None = None) -> None:
        """`question` is asked before the first call, for a user who does not tell all at once."""
        self.plan = plan
        self.question = question

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the question, the next call or the next text; at the end repeat the last one."""
        done = count_done(messages, self.plan.actions)
        said = sum(m.role == "assistant" and not m.tool_calls for m in messages)
        if self.question is not None:
            if not said:
                return Message(role="assistant", content=self.question)
            said -= 1
        if done < len(self.plan.actions):
            return call(self.plan.actions[done], done)
        return Message(role="assistant", content=self.plan.says[min(said, len(self.plan.says) - 1)])


def make_database(scenario: LoadedScenario) -> Database:
    """Return the first state of a scenario."""
    return Database(build_tables(scenario.rows, scenario.now, scenario.tools))


def plan_gold(scenario: LoadedScenario) -> GoldPlan:
    """Return a perfect agent's plan for a scenario."""
    return _Planner(make_database(scenario), scenario).plan()


class _Planner:
    def __init__(self, database: Database, scenario: LoadedScenario) -> None:
        self.database = database
        self.tools = ToolSandboxTools(database)
        self.graph = scenario.milestones.wanted
        self.traces: dict[int, Trace] = {}
        """Position of a milestone -> the trace of the call that was made for it."""
        self.actions: list[Action] = []
        self.says: list[str] = []
        self.outputs: list[str] = []

    def plan(self) -> GoldPlan:
        """Return a plan that reaches the milestones."""
        for place in self._order():
            milestone = self.graph.milestones[place]
            for constraint in milestone.constraints:
                self._bring_about(constraint)
            self._make_traced_call(place, milestone)
            self._say(milestone)
        says = tuple(self.says) or (REFUSAL if not self.actions else "This is done.",)
        return GoldPlan(tuple(self.actions), says, tuple(dict.fromkeys(self.outputs)))

    def _order(self) -> tuple[int, ...]:
        """Return the milestones in an order that the edges allow, settings as early as possible.
        Between two milestones, tables that neither constrains must not change."""
        return self.graph.sort_places(lambda place: (not self._is_setting(place), place))

    def _is_setting(self, place: int) -> bool:
        return any(
            c.table == SETTING
            for c in self.graph.milestones[place].constraints
            if c.relation != "guardrail"
        )

    def _bring_about(self, constraint: Constraint) -> None:
        if constraint.table == SETTING and constraint.relation == "snapshot":
            for name, value in itertools.chain(*(row.items() for row in constraint.rows)):
                if name in _SWITCHES and read_setting(self.database)[name] != value:
                    self._call(_SWITCHES[name], {"on": value})
        elif (constraint.table, constraint.relation) in _WRITES:
            tool, arguments = _WRITES[constraint.table, constraint.relation]
            for row in constraint.rows:
                values = {
                    name: row.get(_COLUMN_OF.get(name, name), row.get(name)) for name in arguments
                }
                self._call(tool, {k: v for k, v in values.items() if v is not None})

    def _make_traced_call(self, place: int, milestone: Milestone) -> None:
        rows = [
            (c, row)
            for c in milestone.constraints
            for row in c.rows
            if row.get("tool_trace") is not None
        ]
        if not rows:
            return
        target = parse_traces(rows[0][1]["tool_trace"])[0]
        arguments = {k: v for k, v in target["arguments"].items() if v is not None}
        for constraint, _ in rows:
            arguments.update(next(iter(self._extract(constraint)), {}))
        trace = self._call(target["tool_name"], self._complete(target["tool_name"], arguments))
        if trace is not None:
            self.traces[place] = trace

    def _complete(self, tool: str, arguments: Row) -> Row:
        """Return the arguments. For a search without any, add one that every row meets."""
        if arguments or tool not in ("search_contacts", "search_messages", "search_reminder"):
            return arguments
        if tool == "search_contacts":
            return {"is_self": False}
        return {"creation_timestamp_upperbound": read_time(self.database)}

    def _call(self, tool: str, arguments: Row) -> Trace | None:
        """Make a call and add it to the plan, or return None if the tool refuses it."""
        result = self.tools.call(tool, arguments)
        if result.error:
            return None
        self.actions.append(Action(name=tool, arguments=arguments))
        return Trace(tool, self.tools.complete(tool, arguments), self.tools.value)

    def _say(self, milestone: Milestone) -> None:
        """Add a milestone's longest text, and its other texts if not contained in it."""
        texts = list(self._texts(milestone))
        if not texts:
            return
        longest = max(texts, key=len)
        missing = [text for text in texts if text not in longest]
        self.says.append(" ".join([longest, *missing]))
        self.outputs += [text.replace(",", "") for text in texts if text != longest]

    def _texts(self, milestone: Milestone) -> Iterator[str]:
        for constraint in milestone.constraints:
            if constraint.table != CONVERSATION:
                continue
            for row in constraint.rows:
                if (row.get("sender"), row.get("recipient")) == (AGENT, USER) and "content" in row:
                    yield self._fill(constraint, str(row["content"]))

    def _fill(self, constraint: Constraint, text: str) -> str:
        if constraint.relation != "trace_dependent":
            return text
        options = self._extract(constraint)
        if not options:
            return text
        try:
            return text.format(**options[min(_PRECISION, len(options) - 1)])
        except (KeyError, IndexError, ValueError):
            return text

    def _extract(self, constraint: Constraint) -> list[dict[str, Any]]:
        if constraint.extractor is None or constraint.reference is None:
            return []
        return extract(constraint.extractor, self.traces.get(constraint.reference))
