"""Assign milestones to moments of an episode, with the largest possible sum of similarities.

The moments of milestones must not decrease along an order that the edges allow. Of equal
assignments the one with later moments is taken. A milestone's similarity may depend on moments of
earlier ones. The search is exact: a recursion over the remaining milestones. It is memoized by the
last moment, and by those versions of tables to which remaining milestones refer.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from envs.milestones.graph import CONVERSATION, FIRST, Constraint, MilestoneGraph, Milestones
from envs.toolsandbox.similarity import measure_constraint
from envs.toolsandbox.snapshots import Recording

_Key = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """The degree to which an episode reaches the milestones of a graph."""

    similarities: Mapping[int, float]
    """Milestone -> its similarity at the moment to which it is assigned."""
    similarity: float
    """The mean similarity over all milestones; 0 without milestones."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of an episode, with both matches from which it follows."""

    similarity: float
    """0 if a minefield is matched, else the milestones' similarity."""
    wanted: Match
    forbidden: Match


def score(milestones: Milestones, recording: Recording) -> Score:
    """Score a transcript. Raise ScoringUnavailable."""
    wanted = match(milestones.wanted, recording)
    forbidden = match(milestones.forbidden, recording)
    reached = wanted.similarity if milestones.wanted.milestones else 1.0
    return Score(reached if forbidden.similarity == 0 else 0.0, wanted, forbidden)


def match(graph: MilestoneGraph, recording: Recording) -> Match:
    """Return the best assignment of a graph's milestones to a transcript's moments."""
    if not graph.places or not recording.snapshots:
        return Match({}, 0.0)
    search = _Search(graph, recording)
    total, steps = search.find(graph.places, 0, {})
    return Match(dict(steps), total / len(graph.milestones))


_Steps = tuple[tuple[int, float], ...]
"""Pairs (milestone, similarity), in the order of their moments."""


class _Search:
    def __init__(self, graph: MilestoneGraph, recording: Recording) -> None:
        self.graph = graph
        self.recording = recording
        self.moments = range(len(recording.snapshots))
        self.before = {
            place: frozenset(a for a, b in graph.edges if b == place) for place in graph.places
        }
        self._cache: dict[tuple[int, int, _Key], float] = {}
        self._known: dict[tuple[tuple[int, ...], int, _Key], tuple[float, _Steps]] = {}
        self._bounds = {place: self._bound(place) for place in graph.places}

    def find(
        self, left: tuple[int, ...], first: int, assigned: dict[int, int]
    ) -> tuple[float, _Steps]:
        """Return the best sum for the milestones `left`, from the moment `first` on, and its
        steps."""
        if not left:
            return 0.0, ()
        key = (left, first, self._see(left, assigned))
        if key not in self._known:
            self._known[key] = self._find(left, first, assigned)
        return self._known[key]

    def _find(
        self, left: tuple[int, ...], first: int, assigned: dict[int, int]
    ) -> tuple[float, _Steps]:
        best: tuple[float, _Steps] = (-1.0, ())
        for similarity, place, moment in self._options(left, first, assigned):
            rest = tuple(other for other in left if other != place)
            hope = similarity + sum(self._bounds[other][moment] for other in rest)
            if hope <= best[0]:
                continue
            total, steps = self.find(rest, moment, {**assigned, place: moment})
            if similarity + total > best[0]:
                best = similarity + total, ((place, similarity), *steps)
        return best

    def _options(
        self, left: tuple[int, ...], first: int, assigned: dict[int, int]
    ) -> Iterator[tuple[float, int, int]]:
        """Yield (similarity, milestone, moment) of a next step: the likest first, then the
        later."""
        ready = [place for place in left if not self.before[place] & set(left)]
        options = [
            (self._measure(place, moment, assigned), place, moment)
            for place in ready
            for moment in self.moments[first:]
        ]
        return iter(sorted(options, key=lambda option: (-option[0], option[1], -option[2])))

    def _measure(self, place: int, moment: int, assigned: Mapping[int, int]) -> float:
        """Return a milestone's similarity at a moment: the n-th root of the product over all its
        constraints, where n is the number of constraints that are no guardrails."""
        product, count = 1.0, 0
        for number, constraint in enumerate(self.graph.milestones[place].constraints):
            reference = _find_reference(constraint, assigned)
            if reference == _UNASSIGNED:
                return 0.0
            product *= self._measure_constraint(place, number, moment, reference)
            count += constraint.relation != "guardrail"
            if not product:
                return 0.0
        return math.pow(product, 1 / max(1, count))

    def _measure_constraint(
        self, place: int, number: int, moment: int, reference: int | None
    ) -> float:
        constraint = self.graph.milestones[place].constraints[number]
        version = self._version(constraint.table, moment)
        earlier = -1 if reference is None else self._version(constraint.table, reference)
        key = (place, number, (version, earlier))
        if key not in self._cache:
            snapshots = self.recording.snapshots
            read = self.recording.read_table
            now = read(snapshots[moment], constraint.table)
            then = None if reference is None else read(snapshots[reference], constraint.table)
            self._cache[key] = measure_constraint(constraint, now, then)
        return self._cache[key]

    def _version(self, table: str, moment: int) -> int:
        """Return the version of a table at a moment; for the conversation, the moment itself."""
        if table == CONVERSATION:
            return moment
        return self.recording.snapshots[moment].versions[table]

    def _bound(self, place: int) -> list[float]:
        """Return, for each moment, the milestone's largest possible similarity from then on."""
        bounds = [0.0] * len(self.moments)
        most = 0.0
        for moment in reversed(self.moments):
            most = max(most, self._bound_at(place, moment))
            bounds[moment] = most
        return bounds

    def _bound_at(self, place: int, moment: int) -> float:
        product, count = 1.0, 0
        for number, constraint in enumerate(self.graph.milestones[place].constraints):
            count += constraint.relation != "guardrail"
            references: list[int | None] = (
                [None]
                if constraint.reference is None
                else [0]
                if constraint.reference == FIRST
                else list(range(moment + 1))
            )
            product *= max(
                self._measure_constraint(place, number, moment, reference)
                for reference in references
            )
        return math.pow(product, 1 / max(1, count))

    def _see(self, left: tuple[int, ...], assigned: Mapping[int, int]) -> _Key:
        """Return the versions of tables at assigned moments to which remaining milestones refer."""
        return tuple(
            self._version(constraint.table, assigned[constraint.reference])
            for place in left
            for constraint in self.graph.milestones[place].constraints
            if constraint.reference is not None and constraint.reference in assigned
        )


_UNASSIGNED: Final = -2
"""Stands for the moment of a milestone that is not yet assigned."""


def _find_reference(constraint: Constraint, assigned: Mapping[int, int]) -> int | None:
    if constraint.reference is None:
        return None
    return 0 if constraint.reference == FIRST else assigned.get(constraint.reference, _UNASSIGNED)
