"""The material of generated tasks: one device, one wish, and the constraints that judge it."""

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
    """A user's wish, a perfect agent's calls, and the milestones that judge them."""

    request: str
    actions: tuple[Action, ...]
    says: str
    """The agent's last message."""
    milestones: tuple[tuple[Constraint, ...], ...]
    """One after the other."""
    tools: tuple[str, ...]
    """Tools that the agent needs; others may distract it."""
    outputs: tuple[str, ...] = ()
    """Texts that the last message must contain, and that no tool's name tells."""
    forbidden: tuple[Constraint, ...] = ()
    """None of these must ever hold."""
    switches: Mapping[str, Any] | None = None
    """The settings that are not as usual at the beginning."""
    details: str | None = None
    """Words that the user says only when asked."""
    knows: str = ""
    """Other knowledge of the user."""
    withheld: tuple[str, ...] = ()
    """Tools that must not even distract, because with them the wish could be fulfilled."""


class Case:
    """One device, and the chance that draws what its owner wants."""

    def __init__(self, device: Device, chance: Random, words: Random | None = None) -> None:
        """With `words` of its own, the same chance draws the same wish in other words."""
        self.device = device
        self.chance = chance
        self.words = words

    def say(self, templates: Phrases, **values: str) -> str:
        """Return a filled phrase. Chance draws in any case, so that its next draw is the same."""
        drawn = self.chance.choice(templates)
        template = drawn if self.words is None else self.words.choice(templates)
        capitals = {name.capitalize(): text[:1].upper() + text[1:] for name, text in values.items()}
        text = template.format_map({**values, **capitals})
        return text[:1].upper() + text[1:]

    def pick(self, values: Sequence[Any]) -> Any:
        """Return one of the values."""
        return self.chance.choice(values)

    def new_phone_number(self) -> str:
        """Return a number that nobody on the device has."""
        taken = {row["phone_number"] for row in self.device.people}
        while True:
            number = draw_phone_number(self.chance)
            if number not in taken:
                return number

    def new_name(self) -> str:
        """Return a name that nobody on the device has."""
        taken = {row["name"] for row in self.device.people}
        while True:
            name = f"{self.pick(FIRST_NAMES)} {self.pick(LAST_NAMES)}"
            if name not in taken:
                return name

    @property
    def now(self) -> datetime:
        """The time on the device."""
        return datetime.fromtimestamp(self.device.now, UTC)


def action(tool: str, **arguments: Any) -> Action:
    """Return a call of a perfect agent."""
    return Action(name=tool, arguments=arguments)


def write_locally(number: str) -> str:
    """Return a number of the United States in local form: +12065550142 is (206) 555-0142."""
    return f"({number[2:5]}) {number[5:8]}-{number[8:]}"


def setting(**switches: bool) -> Constraint:
    """Require the settings to have these values."""
    return Constraint(table=SETTING, relation="snapshot", rows=(dict(switches),))


def traced(tool: str, /, holds: Any = None, **arguments: Any) -> Constraint:
    """Require a call of the tool with these arguments, among others, and `holds` in its result."""
    target = json.dumps(
        {"tool_name": tool, "arguments": arguments, **({} if holds is None else {HOLDS: holds})}
    )
    row = {"sender": ENVIRONMENT, "recipient": AGENT, "tool_trace": target}
    return Constraint(
        table=CONVERSATION, relation="snapshot", rows=(row,), columns={"tool_trace": _TRACE}
    )


def said(*texts: str) -> tuple[Constraint, ...]:
    """Require a message of the agent to contain all of these texts."""
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
    """Require a message of the agent to say this number."""
    (constraint,) = said(number)
    return constraint.model_copy(update={"columns": {"content": _NUMBER}})


def said_value(place: str, reference: int) -> Constraint:
    """Require the agent to say the temperature that milestone `reference`'s call returned."""
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
    """Require a row to be added, updated or removed since the milestone before."""
    return Constraint(table=table, relation=relation, rows=(row,), reference=FIRST)


def build_graph(milestones: Sequence[Sequence[Constraint]]) -> MilestoneGraph:
    """Return a chain of milestones. A table that neither of two neighbours constrains must not
    change between them; changes of the first are from the beginning."""
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
    """Return one forbidden moment per constraint. The chain lets each be matched: the others may
    stand where they are not reached."""
    fields = tuple(Milestone(constraints=(constraint,)) for constraint in constraints)
    edges = tuple((place, place + 1) for place in range(len(fields) - 1))
    return MilestoneGraph(milestones=fields, edges=edges)
