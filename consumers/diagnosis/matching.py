"""Match gold writes with executed writes.

One executed write stands for at most one gold write, so a write made twice is one too many. Pairs
are made from the closest relation to the loosest, within a relation by the fewest differing
arguments, then in gold order, then in the order of the calls:

    EXACT       same tool, same arguments (those of `Action.compare`, where gold names them)
    ARGUMENTS   same tool on the same record, other arguments
    TOOL        another write on the same record
    ENTITY      same tool on another record

Arguments are compared as canonical JSON: `2` is `2.0`, strings are NFC and stripped, the order of
keys is ignored. The order in a list counts unless `ToolCatalog.unordered` says otherwise; in
undeclared tools the order of chosen things is ignored, because a guess must not accuse an agent.

Bounds: `WRITES` writes of each side and `ARGUMENTS` arguments of a write. Each value is read once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

from envs.catalog import Record, ToolCatalog
from events.canonical import comparable_json
from events.messages import Action, ExecutedCall

WRITES: Final = 200
"""Most gold writes, and most executed writes, that are paired; the first ones are kept."""

ARGUMENTS: Final = 100
"""Most arguments of a write that are compared; the first ones by name are kept."""


class Relation(Enum):
    """Relation of an executed write to a gold write, from the closest to the loosest."""

    EXACT = auto()
    ARGUMENTS = auto()
    TOOL = auto()
    ENTITY = auto()


@dataclass(frozen=True, slots=True)
class GoldWrite:
    """A write that a perfect agent makes."""

    place: int
    """Index in the task's gold actions."""
    action: Action
    arguments: Mapping[str, Any]
    record: Record | None


@dataclass(frozen=True, slots=True)
class AgentWrite:
    """A call of the agent to a writing tool, successful or not."""

    turn: int
    tool: str
    arguments: Mapping[str, Any]
    record: Record | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A gold write and the executed write that stands for it and differs from it."""

    gold: GoldWrite
    executed: AgentWrite
    relation: Relation
    differing: tuple[str, ...]
    """Names of the arguments that differ, sorted; empty across tools."""


@dataclass(frozen=True, slots=True)
class WriteMatch:
    """The pairs of gold writes and successful executed writes, and the writes without a pair."""

    pairs: tuple[Pair, ...]
    """Pairs whose writes differ; exact matches are left out."""
    missing: tuple[GoldWrite, ...]
    """Gold writes that no successful write stands for."""
    surplus: tuple[AgentWrite, ...]
    """Successful writes that stand for no gold write."""
    pivot: str
    """Tool of the first gold write that no successful write matches exactly; "*" if all do."""

    @property
    def exact(self) -> bool:
        """Return whether the agent made exactly the gold writes."""
        return not (self.pairs or self.missing or self.surplus)


def value_key(value: Any) -> bytes:
    """Return a hash that is equal for JSON values with equal canonical JSON; numbers count by
    value. It takes linear time and lets values be grouped without comparing pairs."""
    text = comparable_json(value)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def gold_writes(actions: Sequence[Action], catalog: ToolCatalog) -> list[GoldWrite]:
    """Return the agent's gold writes in order, without the user's. If the agent works alone, every
    gold action is its own."""
    return [
        GoldWrite(
            place,
            action,
            catalog.canonicalize(action.name, action.arguments),
            catalog.record(action.arguments),
        )
        for place, action in enumerate(actions)
        if action.requestor == "assistant" and action.name in catalog.changes
    ]


def parse_agent_write(item: ExecutedCall, catalog: ToolCatalog) -> AgentWrite:
    """Return a call as an AgentWrite. Malformed arguments count as no arguments."""
    call = item.call
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    return AgentWrite(
        item.turn, call.name, catalog.canonicalize(call.name, arguments), catalog.record(arguments)
    )


W = TypeVar("W", bound=GoldWrite | AgentWrite)


class _Keyed(Generic[W]):
    """A write, with a key of each argument that is compared."""

    def __init__(self, write: W) -> None:
        self.write = write

    @cached_property
    def keys(self) -> Mapping[str, bytes]:
        arguments = self.write.arguments
        names = arguments if len(arguments) <= ARGUMENTS else sorted(arguments)[:ARGUMENTS]
        return {name: value_key(arguments[name]) for name in names}


class _Gold(_Keyed[GoldWrite]):
    @cached_property
    def argument_names(self) -> tuple[str, ...] | None:
        compare = self.write.action.compare
        return None if compare is None else tuple(sorted(set(compare))[:ARGUMENTS])


_Actual = _Keyed[AgentWrite]


def match(gold: Sequence[GoldWrite], executed: Sequence[AgentWrite]) -> WriteMatch:
    """Pair gold writes with successful executed writes."""
    missing = [_Gold(write) for write in gold[:WRITES]]
    surplus = [_Actual(write) for write in executed[:WRITES]]
    pairs: list[Pair] = []
    pivot = "*"
    for relation in Relation:
        if missing and surplus:
            matches = _take_pairs(relation, missing, surplus)
            if relation is not Relation.EXACT:
                pairs += matches
        if relation is Relation.EXACT and missing:
            pivot = missing[0].write.action.name
    pairs.sort(key=lambda pair: pair.gold.place)
    return WriteMatch(
        tuple(pairs),
        tuple(item.write for item in missing),
        tuple(item.write for item in surplus),
        pivot,
    )


def _take_pairs(relation: Relation, missing: list[_Gold], surplus: list[_Actual]) -> list[Pair]:
    """Return the pairs of one relation, and remove their writes from both lists."""
    related, differs = _RELATED[relation], relation in (Relation.ARGUMENTS, Relation.ENTITY)
    candidates = [
        (_find_differences(wanted, other) if differs else (), left, right)
        for left, wanted in enumerate(missing)
        for right, other in enumerate(surplus)
        if related(wanted, other)
    ]
    # The sort is stable: equally close pairs stay in gold order, then in the order of the calls.
    candidates.sort(key=lambda candidate: len(candidate[0]))
    pairs: list[Pair] = []
    lefts: set[int] = set()
    rights: set[int] = set()
    for differing, left, right in candidates:
        if left not in lefts and right not in rights:
            lefts.add(left)
            rights.add(right)
            pairs.append(Pair(missing[left].write, surplus[right].write, relation, differing))
    missing[:] = [wanted for left, wanted in enumerate(missing) if left not in lefts]
    surplus[:] = [other for right, other in enumerate(surplus) if right not in rights]
    return pairs


def _find_differences(wanted: _Gold, other: _Actual) -> tuple[str, ...]:
    """Return the sorted names of compared arguments that differ or that one write lacks."""
    left, right, counting = wanted.keys, other.keys, wanted.argument_names
    names = left.keys() | right.keys() if counting is None else counting
    return tuple(sorted(name for name in names if left.get(name) != right.get(name)))


def _has_same_tool(wanted: _Gold, other: _Actual) -> bool:
    return wanted.write.action.name == other.write.tool


def _has_same_record(wanted: _Gold, other: _Actual) -> bool:
    return wanted.write.record == other.write.record


_RELATED: Final[Mapping[Relation, Callable[[_Gold, _Actual], bool]]] = {
    Relation.EXACT: lambda wanted, other: (
        _has_same_tool(wanted, other) and not _find_differences(wanted, other)
    ),
    Relation.ARGUMENTS: lambda wanted, other: (
        _has_same_tool(wanted, other) and _has_same_record(wanted, other)
    ),
    Relation.TOOL: lambda wanted, other: (
        not _has_same_tool(wanted, other)
        and wanted.write.record is not None
        and _has_same_record(wanted, other)
    ),
    Relation.ENTITY: lambda wanted, other: (
        _has_same_tool(wanted, other) and not _has_same_record(wanted, other)
    ),
}
