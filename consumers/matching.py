"""Gold writes against executed writes: which stands for which, and which stand alone.

Where it sits: detectors.py asks it once per rollout with gold; five of its rules and the pivot are
read off the result.

One executed write stands for at most one gold write, so a write made twice is one too many. Pairs
are made from the closest relation to the loosest, within one by the fewest differing arguments,
then in gold order, then in the order of the calls:

    EXACT       same tool, same arguments (those of `Action.compare`, where gold names them)
    ARGUMENTS   same tool on the same record, other arguments
    TOOL        another write on the same record
    ENTITY      same tool on another record

Arguments are compared as canonical JSON, without writing any: `2` is `2.0`, strings are NFC and
stripped, the order of keys means nothing and that of a list does (`ToolCatalog.unordered` apart).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from envs.catalog import Record, ToolCatalog
from events.canonical import canonical
from events.messages import Action, ExecutedCall


class Relation(Enum):
    """How an executed write relates to the gold write that it stands for, the closest first."""

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
class ExecutedWrite:
    """A write that the agent asked for, whatever came of it."""

    turn: int
    tool: str
    arguments: Mapping[str, Any]
    record: Record | None


@dataclass(frozen=True, slots=True)
class Pair:
    """An executed write that stands for a gold write without being it."""

    gold: GoldWrite
    executed: ExecutedWrite
    relation: Relation
    differing: tuple[str, ...]
    """Names of the arguments that differ, sorted; empty across tools."""


@dataclass(frozen=True, slots=True)
class Matching:
    """What became of each gold write and of each successful executed one."""

    pairs: tuple[Pair, ...]
    """Stand-ins; exact matches are not listed."""
    missing: tuple[GoldWrite, ...]
    """Gold writes that no successful write stands for."""
    surplus: tuple[ExecutedWrite, ...]
    """Successful writes that stand for no gold write."""
    pivot: str
    """Tool of the first gold write that no successful write matches exactly; "*" if all do."""

    @property
    def exact(self) -> bool:
        """Whether the agent made exactly the gold writes."""
        return not (self.pairs or self.missing or self.surplus)


def same_value(left: Any, right: Any) -> bool:
    """Whether two JSON values have the same canonical JSON."""
    if isinstance(left, str):
        if not isinstance(right, str):
            return False
        if left == right:
            return True
        if left.isascii() and right.isascii():
            return left.strip() == right.strip()
        return bool(canonical(left) == canonical(right))
    if isinstance(left, dict):
        if not isinstance(right, dict) or len(left) != len(right):
            return False
        for key, item in left.items():
            if key not in right or not same_value(item, right[key]):
                return False
        return True
    if isinstance(left, list | tuple):
        if not isinstance(right, list | tuple) or len(left) != len(right):
            return False
        return all(map(same_value, left, right))
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


def gold_writes(actions: Sequence[Action], catalog: ToolCatalog) -> list[GoldWrite]:
    """The agent's gold writes, in order; what the user's side should do is not the agent's."""
    return [
        GoldWrite(
            place,
            action,
            catalog.settled(action.name, action.arguments),
            catalog.record(action.arguments),
        )
        for place, action in enumerate(actions)
        if action.requestor == "assistant" and action.name in catalog.writes
    ]


def executed_write(item: ExecutedCall, catalog: ToolCatalog) -> ExecutedWrite:
    """A call as a write; malformed arguments count as none."""
    call = item.call
    arguments = call.arguments if isinstance(call.arguments, dict) else {}
    return ExecutedWrite(
        item.turn, call.name, catalog.settled(call.name, arguments), catalog.record(arguments)
    )


def match(gold: Sequence[GoldWrite], executed: Sequence[ExecutedWrite]) -> Matching:
    """Pair gold writes with successful executed ones."""
    missing = list(gold)
    surplus = list(executed)
    pairs: list[Pair] = []
    pivot = "*"
    for relation in Relation:
        if missing and surplus:
            found = _paired(relation, missing, surplus)
            if relation is not Relation.EXACT:
                pairs += found
        if relation is Relation.EXACT and missing:
            pivot = missing[0].action.name
    pairs.sort(key=lambda pair: pair.gold.place)
    return Matching(tuple(pairs), tuple(missing), tuple(surplus), pivot)


def _paired(
    relation: Relation, missing: list[GoldWrite], surplus: list[ExecutedWrite]
) -> list[Pair]:
    """The pairs of one relation; both lists lose what is in them."""
    related = _RELATED[relation]
    candidates = [
        _pair(relation, write, other)
        for write in missing
        for other in surplus
        if related(write, other)
    ]
    # The sort is stable: equally close pairs stay in gold order, then in the order of the calls.
    candidates.sort(key=lambda pair: len(pair.differing))
    pairs: list[Pair] = []
    for pair in candidates:
        if any(pair.gold is taken.gold or pair.executed is taken.executed for taken in pairs):
            continue
        pairs.append(pair)
    missing[:] = [write for write in missing if all(write is not pair.gold for pair in pairs)]
    surplus[:] = [other for other in surplus if all(other is not pair.executed for pair in pairs)]
    return pairs


def _pair(relation: Relation, write: GoldWrite, other: ExecutedWrite) -> Pair:
    differs = relation in (Relation.ARGUMENTS, Relation.ENTITY)
    return Pair(write, other, relation, _differing(write, other) if differs else ())


def _differing(write: GoldWrite, other: ExecutedWrite) -> tuple[str, ...]:
    """Names of the arguments that count and differ; one side's lack of it is a difference."""
    wanted, given = write.arguments, other.arguments
    compare = write.action.compare
    names = wanted.keys() | given.keys() if compare is None else compare
    return tuple(
        sorted(
            name
            for name in names
            if (name in wanted) != (name in given)
            or not same_value(wanted.get(name), given.get(name))
        )
    )


def _exact(write: GoldWrite, other: ExecutedWrite) -> bool:
    return write.action.name == other.tool and not _differing(write, other)


def _same_tool_same_record(write: GoldWrite, other: ExecutedWrite) -> bool:
    return write.action.name == other.tool and write.record == other.record


def _other_tool_same_record(write: GoldWrite, other: ExecutedWrite) -> bool:
    return (
        write.action.name != other.tool
        and write.record is not None
        and write.record == other.record
    )


def _same_tool_other_record(write: GoldWrite, other: ExecutedWrite) -> bool:
    return write.action.name == other.tool and write.record != other.record


_RELATED: dict[Relation, Callable[[GoldWrite, ExecutedWrite], bool]] = {
    Relation.EXACT: _exact,
    Relation.ARGUMENTS: _same_tool_same_record,
    Relation.TOOL: _other_tool_same_record,
    Relation.ENTITY: _same_tool_other_record,
}
