"""Milestones and minefields: what must happen in an episode, in which order, and what must not.

A milestone is a set of constraints on one moment of an episode. The moments are ToolSandbox's
(arXiv 2408.04682): one after each row of the conversation, with the tables at that time. The models
are plain data, part of a task's digest; envs/toolsandbox measures transcripts against them.
"""

import itertools
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from events.messages import StrictModel

CONVERSATION: Final = "SANDBOX"
"""The table with the rows of the conversation, one row for each moment."""

FIRST: Final = -1
"""Value of `reference` for the moment of the user's first words."""

EXACT: Final = 1 - 1e-9
"""Similarity from which on an episode counts as perfect: 1 less a margin for rounding."""

INSUFFICIENT: Final = "insufficient_information"
"""Category of tasks that cannot be fulfilled: a refusal is right, so reports separate them."""

Relation = Literal["snapshot", "addition", "removal", "update", "trace_dependent", "guardrail"]
"""How the table must look.

snapshot         its rows are the target rows
addition         it is the table of the reference and the target rows
removal          it is the table of the reference without the target rows
update           of the rows of the reference, as many as target rows became the target rows
trace_dependent  as snapshot, with values from the tool call of the reference filled in
guardrail        it is the table of the reference
"""

Extractor = Literal[
    "search_weather_around_lat_lon_temperature_extractor",
    "result_to_timestamp0_extractor",
    "result_to_timestamp1_extractor",
    "days_extractor",
    "lat_lon_dict_extractor",
    "current_temperature_extractor",
    "result_to_temperature_extractor",
    "result_to_reminder_timestamp_lowerbound_extractor",
    "min_temperature_amount_extractor",
    "min_temperature_extractor",
]
"""The value that is taken from the traced call of the reference, by its name in the exported
scenarios (envs/toolsandbox/extractors.py)."""


class Measure(StrictModel):
    """The way to compare a column with its target value, as a similarity between 0 and 1."""

    name: Literal["exact", "contains", "number", "rouge_l", "tool_trace", "close", "any"]
    """`number`: the text must say the target as a number, so that 230 does not say 23."""
    tolerance: dict[str, float | None] = {}
    """For `tool_trace` and `close`: argument or column -> tolerance of a number; None: any
    number."""


class Constraint(StrictModel):
    """A condition on one table at the moment of a milestone."""

    table: str
    relation: Relation
    rows: tuple[dict[str, Any], ...] = ()
    """The target rows: column -> value."""
    columns: dict[str, Measure] = {}
    """Column -> its measure; `exact` for columns not named."""
    reference: Annotated[int, Field(ge=FIRST)] | None = None
    """Position of the milestone at whose moment the reference table is taken; `FIRST`: the first
    moment."""
    fill_to: Literal["tool_trace", "content"] | None = None
    """Column that `trace_dependent` fills."""
    extractor: Extractor | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.relation == "trace_dependent" and None in (
            self.fill_to,
            self.extractor,
            self.reference,
        ):
            raise ValueError("a trace_dependent constraint names fill_to, extractor and reference")
        if self.relation in ("addition", "removal", "update", "guardrail") and (
            self.reference is None
        ):
            raise ValueError(f"a constraint {self.relation} names a reference")
        return self


class Milestone(StrictModel):
    """Constraints that must all hold at one moment."""

    constraints: Annotated[tuple[Constraint, ...], Field(min_length=1)]


class MilestoneGraph(StrictModel):
    """Milestones, and pairs of them that fix their order."""

    milestones: tuple[Milestone, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    """Pairs (earlier, later) of positions. Of several milestones, those without edge are
    ignored."""

    @model_validator(mode="after")
    def _refers_to_itself(self) -> Self:
        count = len(self.milestones)
        named = [place for edge in self.edges for place in edge] + [
            constraint.reference
            for milestone in self.milestones
            for constraint in milestone.constraints
            if constraint.reference not in (None, FIRST)
        ]
        for place in named:
            if place is not None and not 0 <= place < count:
                raise ValueError(f"there is no milestone {place} among {count}")
        if len(self.places) < len(set(itertools.chain(*self.edges))):
            raise ValueError(f"the edges {list(self.edges)} lead in a circle")
        return self

    @property
    def places(self) -> tuple[int, ...]:
        """Positions of the milestones that are matched, in an order that the edges allow."""
        return self.sort_places(lambda place: place)

    def sort_places(self, key: Callable[[int], Any]) -> tuple[int, ...]:
        """Return the positions of the matched milestones in an order that the edges allow, by
        smallest key. Milestones in or after a circle are left out."""
        left = {0} if len(self.milestones) == 1 else set(itertools.chain(*self.edges))
        before = {place: {a for a, b in self.edges if b == place} for place in left}
        order: list[int] = []
        while ready := [place for place in left if not before[place] & left]:
            order.append(min(ready, key=key))
            left.remove(order[-1])
        return tuple(order)


class Milestones(StrictModel):
    """The rules of an episode's score: 0 for a matched minefield, else the milestones'
    similarity."""

    wanted: MilestoneGraph = MilestoneGraph()
    """Milestones to reach. Without any, their similarity is 1."""
    forbidden: MilestoneGraph = MilestoneGraph()
    """Minefields: a similarity above 0 makes the score 0."""
    threshold: Annotated[float, Field(gt=0, le=1)] = EXACT
    """Score from which on the episode is a success."""
