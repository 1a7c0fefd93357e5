"""A device and a wish of its owner, and helpers that make constraints for the task's milestones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from envs.milestones.graph import (
    CONVERSATION,
    FIRST,
    Constraint,
    Measure,
    Milestone,
    MilestoneGraph,
)
from envs.toolsandbox.database import FIRST_NAMES, LAST_NAMES, Device, draw_phone_number
from envs.toolsandbox.device.state import COLUMNS, SETTING, Row
from envs.toolsandbox.phrases import Phrases
from envs.toolsandbox.similarity import HOLDS
from envs.toolsandbox.snapshots import AGENT, ENVIRONMENT, USER
from events.messages import Action

_TRACE: Final = Measure(name="tool_trace")
_CONTAINS: Final = Measure(name="contains")
_NUMBER: Final = Measure(name="number")


@dataclass(frozen=True, slots=True)
class Plan:
    """A user's wish, a perfect agent's calls and words, and the milestones of the task."""

    request: str
    actions: tuple[Action, ...]
    says: str
    """The agent's last message."""
    milestones: tuple[tuple[Constraint, ...], ...]
    """Constraints of each milestone, in the order in which the milestones must be reached."""
    tools: tuple[str, ...]
    """Tools that the agent needs. A task may offer further ones as distraction."""
    outputs: tuple[str, ...] = ()
    """Texts that the last message must contain, and that no tool's name reveals."""
    forbidden: tuple[Constraint, ...] = ()
    """Constraints that must never hold."""
    switches: Mapping[str, Any] | None = None
    """Settings that differ from the usual ones at the beginning."""
    details: str | None = None
    """The user's words if the agent asks a question."""
    knows: str = ""
    """Further knowledge of the user."""
    withheld: tuple[str, ...] = ()
    """Tools that may not be offered even as distraction, because they could fulfil the wish."""


class Case:
    """One device, and the random generator that draws its owner's wishes."""

    def __init__(self, device: Device, chance: Random, words: Random | None = None) -> None:
        """Make a case whose wishes `chance` draws. With `words`, only the phrases differ."""
        self.device = device
        self.chance = chance
        self.words = words

    def say(self, templates: Phrases, **values: str) -> str:
        """Return a random filled phrase. `chance` draws even if `words` decides, to stay in
        step."""
        drawn = self.chance.choice(templates)
        template = drawn if self.words is None else self.words.choice(templates)
        capitals = {name.capitalize(): text[:1].upper() + text[1:] for name, text in values.items()}
        text = template.format_map({**values, **capitals})
        return text[:1].upper() + text[1:]

    def pick(self, values: Sequence[Any]) -> Any:
        """Return a random one of the values."""
        return self.chance.choice(values)

    def new_phone_number(self) -> str:
        """Return a random phone number that is not on the device."""
        taken = {row["phone_number"] for row in self.device.people}
        while True:
            number = draw_phone_number(self.chance)
            if number not in taken:
                return number

    def new_name(self) -> str:
        """Return a random name that is not on the device."""
        taken = {row["name"] for row in self.device.people}
        while True:
            name = f"{self.pick(FIRST_NAMES)} {self.pick(LAST_NAMES)}"
            if name not in taken:
                return name

    @property
    def now(self) -> datetime:
        """The present time on the device."""
        return datetime.fromtimestamp(self.device.now, UTC)


def action(tool: str, **arguments: Any) -> Action:
    """Return a gold action of the agent."""
    return Action(name=tool, arguments=arguments)


def write_locally(number: str) -> str:
    """Return a number of the United States in local form: (206) 555-0142 for +12065550142."""
    return f"({number[2:5]}) {number[5:8]}-{number[8:]}"


def setting(**switches: bool) -> Constraint:
    """Return a constraint: the settings have these values."""
    return Constraint(table=SETTING, relation="snapshot", rows=(dict(switches),))


def traced(tool: str, /, holds: Any = None, **arguments: Any) -> Constraint:
    """Return a constraint: the tool is called with these arguments and `holds` is in its result."""
    target = json.dumps(
        {"tool_name": tool, "arguments": arguments, **({} if holds is None else {HOLDS: holds})}
    )
    row = {"sender": ENVIRONMENT, "recipient": AGENT, "tool_trace": target}
    return Constraint(
        table=CONVERSATION, relation="snapshot", rows=(row,), columns={"tool_trace": _TRACE}
    )


def said(*texts: str) -> tuple[Constraint, ...]:
    """Return constraints: a message of the agent contains all of these texts."""
    return tuple(
        Constraint(
            table=CONVERSATION,
            relation="snapshot",
            rows=({"sender": AGENT, "recipient": USER, "content": text},),
            columns={"content": _CONTAINS},
        )
        for text in texts
    )


def said_number(number: str) -> Constraint:
    """Return a constraint: a message of the agent says this number."""
    (constraint,) = said(number)
    return constraint.model_copy(update={"columns": {"content": _NUMBER}})


def said_value(place: str, reference: int) -> Constraint:
    """Return a constraint: the agent says the temperature from milestone `reference`'s call."""
    return Constraint(
        table=CONVERSATION,
        relation="trace_dependent",
        rows=({"sender": AGENT, "recipient": USER, "content": f"{{{place}}}"},),
        columns={"content": _NUMBER},
        reference=reference,
        fill_to="content",
        extractor="result_to_temperature_extractor",
    )


def changed(table: str, relation: Any, row: Row) -> Constraint:
    """Return a constraint: a row was changed as `relation` says since the milestone before."""
    return Constraint(table=table, relation=relation, rows=(row,), reference=FIRST)


def build_graph(milestones: Sequence[Sequence[Constraint]]) -> MilestoneGraph:
    """Return the milestones as a chain. A table that neither of two neighbours constrains must not
    change between them. Changes in the first milestone are relative to the beginning."""
    whole = []
    for place, constraints in enumerate(milestones):
        before = milestones[place - 1] if place else ()
        tables = {constraint.table for constraint in (*constraints, *before)}
        guardrails = [
            Constraint(table=table, relation="guardrail", reference=place - 1 if place else FIRST)
            for table in COLUMNS
            if table not in tables
        ]
        own = [
            constraint.model_copy(update={"reference": place - 1})
            if place and constraint.relation in ("addition", "update", "removal")
            else constraint
            for constraint in constraints
        ]
        whole.append(Milestone(constraints=(*own, *guardrails)))
    edges = tuple((place, place + 1) for place in range(len(whole) - 1))
    return MilestoneGraph(milestones=tuple(whole), edges=edges)


def build_minefields(constraints: Sequence[Constraint]) -> MilestoneGraph:
    """Return a graph with one forbidden moment for each constraint. They form a chain, since
    milestones without edge match nothing; each can still be matched alone."""
    fields = tuple(Milestone(constraints=(constraint,)) for constraint in constraints)
    edges = tuple((place, place + 1) for place in range(len(fields) - 1))
    return MilestoneGraph(milestones=fields, edges=edges)
