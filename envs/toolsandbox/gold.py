"""A perfect agent's calls, worked out from a scenario's milestones.

In an order that the edges allow, a required state is brought about by the tool that writes it, and
a required call is made; required texts are said at the end. The calls are made on a state of its
own, so that later milestones can take values from results. Where milestones ask for a tool that the
scenario does not allow, no agent reaches them all.
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
"""Words of a perfect agent where nothing can be done."""

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
"""Required change of a table -> the tool that makes it, and the arguments it takes."""

_COLUMN_OF: Final = {"phone_number": "recipient_phone_number"}
"""Argument of a message's sending -> its column."""

_PRECISION: Final = 1
"""Precision in which a number is said: one digit after the point."""


@dataclass(frozen=True, slots=True)
class GoldPlan:
    """A perfect agent's calls."""

    actions: tuple[Action, ...]
    says: tuple[str, ...]
    """Its last messages."""
    outputs: tuple[str, ...]
    """Texts that they must contain, without commas."""


class PlanAgent:
    """Makes the calls of a plan without asking, then says its texts, each in a message."""

    def __init__(self, plan: GoldPlan, question: str | None = None) -> None:
        """`question` is asked before the first call, where the user does not say all at once."""
        self.plan = plan
        self.question = question

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next call or text; the last text again when all is said."""
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
    """Return the state in which a scenario begins."""
    return Database(build_tables(scenario.rows, scenario.now, scenario.tools))


def plan_gold(scenario: LoadedScenario) -> GoldPlan:
    """Return what a perfect agent does in a scenario."""
    return _Planner(make_database(scenario), scenario).plan()


class _Planner:
    def __init__(self, database: Database, scenario: LoadedScenario) -> None:
        self.database = database
        self.tools = ToolSandboxTools(database)
        self.graph = scenario.milestones.wanted
        self.traces: dict[int, Trace] = {}
        """Milestone -> its call."""
        self.actions: list[Action] = []
        self.says: list[str] = []
        self.outputs: list[str] = []

    def plan(self) -> GoldPlan:
        """Return the plan for the milestones."""
        for place in self._order():
            milestone = self.graph.milestones[place]
            for constraint in milestone.constraints:
                self._bring_about(constraint)
            self._make_traced_call(place, milestone)
            self._say(milestone)
        says = tuple(self.says) or (REFUSAL if not self.actions else "This is done.",)
        return GoldPlan(tuple(self.actions), says, tuple(dict.fromkeys(self.outputs)))

    def _order(self) -> tuple[int, ...]:
        """Return the milestones in an order that the edges allow, settings as early as can be:
        between two milestones nothing may change that neither is about."""
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
        """Return the arguments, with one that every row meets where a search names none."""
        if arguments or tool not in ("search_contacts", "search_messages", "search_reminder"):
            return arguments
        if tool == "search_contacts":
            return {"is_self": False}
        return {"creation_timestamp_upperbound": read_time(self.database)}

    def _call(self, tool: str, arguments: Row) -> Trace | None:
        """Make a call and note it; one that is refused is none of a perfect agent's."""
        result = self.tools.call(tool, arguments)
        if result.error:
            return None
        self.actions.append(Action(name=tool, arguments=arguments))
        return Trace(tool, self.tools.complete(tool, arguments), self.tools.value)

    def _say(self, milestone: Milestone) -> None:
        """Note the text that a milestone asks for: the longest, with what it must contain."""
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
