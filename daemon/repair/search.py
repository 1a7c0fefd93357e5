"""Search the smallest change of an agent's writes that leads to the state of the gold writes.

    drop        leave out a write
    arguments   give a write the arguments of a gold write of the same tool
    tool        replace a write by a gold write of another tool on the same record
    insert      make a gold write that is missing

Candidate repairs are tried in this order: fewest edits, then the order of the list above, accepted
writes before refused ones, fewest changed arguments, earliest write. A replay runs the tools over a
fresh state, without model and user, exactly as grading does (envs/grading.py).

Not tried: changes of a write that equals a gold write; drops of refused writes; changes of a
refused write that repeats an earlier one; insertions except in gold's order or at the end; another
tool for a write whose own tool has a missing gold write on that record. Several edits are replayed
together only if their effects can add up: each wrong record within reach of single edits is put
right by one of them or touched by two. An edit without an effect may enable another one.

Guarantee: the same rollout and task give the same edits, unless the seconds run out first. Not
covered: environments whose user has tools, since the user acts between the agent's writes.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations, combinations_with_replacement, product
from typing import Any, Final

from consumers.diagnosis.matching import GoldWrite, gold_writes, value_key
from envs.catalog import ToolCatalog
from envs.comparison.arrangement import arrange_calls, arrange_states, arrange_task
from envs.database import Database
from envs.environment import Environment
from envs.grading import replay_gold
from envs.task import TaskDefinition
from events.canonical import exact_json
from events.learning import Operation as WrittenOperation
from events.messages import ExecutedCall

EDITS: Final = 5
"""Largest number of edits in a repair."""

REPLAYS: Final = 400
"""Largest number of replays in a search."""

SECONDS: Final = 2.0
"""Time limit of a search in seconds; the running replay is still finished."""

WRITES: Final = 60
"""Limit for the agent's writes, and for the gold writes; a search does not begin beyond it."""


class Operation(IntEnum):
    """Kinds of edits, the smallest change first."""

    DROP = 0
    ARGUMENTS = 1
    TOOL = 2
    INSERT = 3

    @property
    def word(self) -> WrittenOperation:
        """Return the operation's name in events."""
        return _WORDS[self]


_WORDS: Final[Mapping[int, WrittenOperation]] = {
    Operation.DROP: "drop",
    Operation.ARGUMENTS: "arguments",
    Operation.TOOL: "tool",
    Operation.INSERT: "insert",
}


@dataclass(frozen=True, slots=True, order=True)
class WriteEdit:
    """One change of the agent's writes. Edits sort by the size of the change."""

    operation: Operation
    is_refused: bool
    """Whether the tool refused the agent's write."""
    distance: int
    """Number of arguments that an edit of `ARGUMENTS` changes; else 0."""
    place: int
    """Index among the agent's writes. An insertion goes before that write."""
    gold: int | None = None
    """Index of the gold write that the edit puts in; None for a drop."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The repair that a search found, or the reason why it found none."""

    edits: tuple[WriteEdit, ...] | None
    """The smallest repair; () if the state was right already, None if no repair was found."""
    replays: int
    bound: str = ""
    """The limit that ended the search, such as "400 replays"; "" if none did."""
    mismatch: str = ""
    """The difference between replay and record that prevented a search; "" without one."""


_Call = tuple[str, Mapping[str, Any] | str]
"""Tool name and arguments of a write to replay."""

_Place = tuple[str, str]
"""Table name and key of a record."""


@dataclass(frozen=True, slots=True)
class _Effect:
    fixed: frozenset[_Place]
    """Records that the edit puts right."""
    broken: frozenset[_Place]
    """Records that were right and that the edit makes wrong."""
    touched: frozenset[_Place]
    """Records that the edit changes."""


class _BoundReached(Exception):
    """A search reached one of its limits; the text names the limit."""


@dataclass(slots=True)
class _Replayer:
    environment: Environment
    task: TaskDefinition
    most: int
    deadline: float
    count: int = 0
    errors: list[bool] = field(default_factory=list)
    """For each call of the last replay, whether the tool answered with an error."""

    def check_time(self) -> None:
        """Raise _BoundReached if the deadline has passed."""
        if time.monotonic() > self.deadline:
            raise _BoundReached("the time for one search")

    def replay(self, calls: Sequence[_Call]) -> Database:
        """Run the calls over a fresh state and return that state. Raise _BoundReached."""
        if self.count >= self.most:
            raise _BoundReached(f"{self.most} replays")
        if self.count:
            self.check_time()
        self.count += 1
        database = self.environment.reset(self.task)
        tools = self.environment.toolset(database)
        self.errors = [tools.call(name, arguments).error for name, arguments in calls]
        return database

    def find_differing(self, expected: Database, actual: Database) -> frozenset[_Place]:
        """Return the records that differ between two states, by the rules of the reward part DB."""
        states = arrange_states(self.environment, self.task, expected, actual)
        return frozenset((item.path[0], item.path[1]) for item in states[0].difference(states[1]))


class RepairSearch:
    """The search for one rollout's smallest repair."""

    def __init__(
        self,
        environment: Environment,
        task: TaskDefinition,
        calls: Sequence[ExecutedCall],
        catalog: ToolCatalog,
        *,
        edits: int = EDITS,
        replays: int = REPLAYS,
        seconds: float = SECONDS,
    ) -> None:
        """Prepare a search. `calls` are the rollout's executed calls, in order."""
        task = arrange_task(environment, task)
        self._catalog = catalog
        self._edits = edits
        self._user_acts = environment.user_toolset is not None
        self.writes = [
            item
            for item in calls
            if item.requestor == "assistant" and item.call.name in environment.writes
        ]
        self.gold: list[GoldWrite] = gold_writes(task.criteria.gold_actions or (), catalog)
        self._calls: list[_Call] = [
            (item.call.name, item.call.arguments)
            for item in arrange_calls(environment, task, self.writes)
        ]
        self._expected = replay_gold(environment, task)
        deadline = time.monotonic() + seconds
        self._replayer = _Replayer(environment, task, replays, deadline)
        self._find_differing = self._replayer.find_differing
        self.refused: list[bool] = []
        """For each write of the agent, whether the tool refuses it in the replay."""

    def find_differences(self, place: int, index: int) -> tuple[str, ...]:
        """Return the sorted names of the arguments that differ between a write and a gold write."""
        call, wanted = self.writes[place].call, self.gold[index].arguments
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        actual = self._catalog.canonicalize(call.name, arguments)
        names = wanted.keys() | actual.keys()
        return tuple(sorted(name for name in names if _key(wanted, name) != _key(actual, name)))

    def run(self) -> SearchResult:
        """Search the smallest repair and return the result. Raise the environment's errors."""
        if self._user_acts:
            return SearchResult(None, 0, bound="an environment whose user acts")
        if max(len(self.writes), len(self.gold)) > WRITES:
            return SearchResult(None, 0, bound=f"{WRITES} writes")
        base = self._replayer.replay(self._calls)
        self.refused = self._replayer.errors
        mismatch = self._find_mismatch()
        if mismatch:
            return SearchResult(None, self._replayer.count, mismatch=mismatch)
        wrong = self._find_differing(self._expected, base)
        if not wrong:
            return SearchResult((), self._replayer.count)
        try:
            repair = self._search(base, wrong)
        except _BoundReached as reached:
            return SearchResult(None, self._replayer.count, bound=str(reached))
        bound = "" if repair is not None else f"{self._edits} edits"
        return SearchResult(repair, self._replayer.count, bound=bound)

    def _find_mismatch(self) -> str:
        """Return a sentence on the first write that the tool refuses in the replay but accepted in
        the record, or the reverse. Return "" without one."""
        for item, refused in zip(self.writes, self.refused, strict=True):
            answer = item.result
            if answer is None:
                continue
            recorded = answer.error
            if recorded is None:
                recorded = answer.text.startswith("Error")
            if bool(recorded) != refused:
                now = "refuses" if refused else "accepts"
                return f"{item.call.name} {now} at turn {item.turn} what it answered otherwise"
        return ""

    def _search(self, base: Database, wrong: frozenset[_Place]) -> tuple[WriteEdit, ...] | None:
        edits = sorted(self._list_edits())
        effects: dict[WriteEdit, _Effect] = {}
        for edit in edits:
            state = self._replayer.replay(self._apply((edit,)))
            left = self._find_differing(self._expected, state)
            if not left:
                return (edit,)
            effects[edit] = _Effect(wrong - left, left - wrong, self._find_differing(base, state))
        reachable = wrong & _join(effect.touched for effect in effects.values())
        for size in range(2, self._edits + 1):
            for chosen in _combine(edits, size):
                self._replayer.check_time()
                if _conflicts(chosen) or not _can_add_up([effects[e] for e in chosen], reachable):
                    continue
                if not self._find_differing(
                    self._expected, self._replayer.replay(self._apply(chosen))
                ):
                    return chosen
        return None

    def _list_edits(self) -> Iterator[WriteEdit]:
        made = self._match_exact_writes()
        missing = [place for place in range(len(self.gold)) if place not in made.values()]
        repeated: set[str] = set()
        for place, call in enumerate(self._calls):
            text = exact_json(call)
            if place in made or (self.refused[place] and text in repeated):
                continue
            repeated.add(text)
            yield from self._list_changes(place, missing)
        for index in missing:
            before = [place for place, gold in made.items() if gold < index]
            for place in sorted({max(before, default=-1) + 1, len(self._calls)}):
                yield WriteEdit(Operation.INSERT, False, 0, place, index)

    def _list_changes(self, place: int, missing: Sequence[int]) -> Iterator[WriteEdit]:
        """Yield the edits of the write at `place`. `missing`: indices of gold writes not made."""
        name, arguments = self._calls[place]
        is_refused = self.refused[place]
        on_record = [index for index in missing if self._is_same_record(arguments, index)]
        own = [index for index in missing if self.gold[index].action.name == name]
        for index in own:
            distance = len(self.find_differences(place, index))
            yield WriteEdit(Operation.ARGUMENTS, is_refused, distance, place, index)
        if is_refused:
            return
        yield WriteEdit(Operation.DROP, False, 0, place)
        if not set(own).intersection(on_record):
            for index in on_record:
                yield WriteEdit(Operation.TOOL, False, 0, place, index)

    def _match_exact_writes(self) -> dict[int, int]:
        """Return write -> equal gold write, as indices; each gold write is matched at most once."""
        made: dict[int, int] = {}
        for index, gold in enumerate(self.gold):
            wanted = exact_json([gold.action.name, gold.action.arguments])
            for place, call in enumerate(self._calls):
                if place not in made and not self.refused[place] and exact_json(call) == wanted:
                    made[place] = index
                    break
        return made

    def _is_same_record(self, arguments: Mapping[str, Any] | str, index: int) -> bool:
        record = self.gold[index].record
        return (
            record is not None
            and not isinstance(arguments, str)
            and self._catalog.record(arguments) == record
        )

    def _apply(self, edits: Sequence[WriteEdit]) -> list[_Call]:
        at = {edit.place: edit for edit in edits if edit.operation is not Operation.INSERT}
        inserted = [edit for edit in edits if edit.operation is Operation.INSERT]
        calls: list[_Call] = []
        for place in range(len(self._calls) + 1):
            calls += [self._gold_call(edit) for edit in inserted if edit.place == place]
            if place == len(self._calls):
                break
            edit = at.get(place)
            if edit is None:
                calls.append(self._calls[place])
            elif edit.operation is not Operation.DROP:
                calls.append(self._gold_call(edit))
        return calls

    def _gold_call(self, edit: WriteEdit) -> _Call:
        assert edit.gold is not None, "only a drop has no gold write"
        action = self.gold[edit.gold].action
        return action.name, action.arguments


def _combine(edits: Sequence[WriteEdit], size: int) -> Iterator[tuple[WriteEdit, ...]]:
    """Yield every choice of `size` edits, ordered by their operations (smallest changes first),
    then by places."""
    by_operation = {operation: list[WriteEdit]() for operation in Operation}
    for edit in edits:
        by_operation[edit.operation].append(edit)
    for operations in combinations_with_replacement(Operation, size):
        counts = Counter(operations)
        groups = [combinations(by_operation[name], count) for name, count in counts.items()]
        for chosen in product(*groups):
            yield tuple(edit for group in chosen for edit in group)


def _conflicts(edits: Sequence[WriteEdit]) -> bool:
    """Return whether two edits change the same write or make the same gold write."""
    places = [edit.place for edit in edits if edit.operation is not Operation.INSERT]
    gold = [edit.gold for edit in edits if edit.gold is not None]
    return len(set(places)) < len(places) or len(set(gold)) < len(gold)


def _join(places: Iterable[frozenset[_Place]]) -> frozenset[_Place]:
    return frozenset[_Place]().union(*places)


def _key(arguments: Mapping[str, Any], name: str) -> bytes | None:
    return value_key(arguments[name]) if name in arguments else None


def _can_add_up(effects: Sequence[_Effect], wrong: frozenset[_Place]) -> bool:
    """Return whether these edits together could put the `wrong` records right and break none."""
    if any(not effect.touched for effect in effects):
        return True
    fixed = _join(effect.fixed for effect in effects)
    broken = _join(effect.broken for effect in effects)
    return all(
        sum(place in effect.touched for effect in effects) >= 2
        for place in (wrong - fixed) | broken
    )
