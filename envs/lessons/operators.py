"""Wrong calls in place of a right one, as in Structured Reflection (arXiv 2509.18847).

    swap        the next call before the one that it depends on
    redundant   the same call twice in one message
    missing     a later call without the one that it needs, or another tool in that one's place
    argument    a required argument left out, null, -1, of another type, under another name, off by
                one, or another entity that was seen

Each function yields wrong calls in an order that the seed draws. A value that only a later answer
has is replaced by a seen one of its kind.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from random import Random
from typing import Any, Final

from envs.lessons.trajectories import Place
from envs.lessons.values import SeenValues
from envs.task import Operator

REFUSABLE: Final[tuple[Operator, ...]] = ("argument", "swap", "missing")
"""Operators whose wrong calls a tool may refuse. A repeated call is allowed."""

WRONG_TEXT: Final = "wrong_value"
"""Text that replaces a value of another type."""

_REPLACEMENTS: Final = 4
"""Largest number of seen values tried as replacement of a value that the agent has not seen."""

Schemas = Mapping[str, Mapping[str, Any]]
"""Tool -> its parameters as JSON Schema."""

Arguments = dict[str, Any]

_CAPITAL: Final = re.compile(r"_([a-z])")


@dataclass(frozen=True, slots=True)
class WrongCall:
    """A wrong call, made in place of the right one."""

    operator: Operator
    name: str
    arguments: Arguments | str
    times: int = 1
    """Number of times that it is made: 2 for a repetition of the right call."""
    comes_too_early: bool = False
    """Whether it is a later call of the same trajectory, made now."""
    is_dependent: bool = False
    """Whether a value of that later call becomes known only by the right call's answer."""


def read_schemas(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return tool -> its parameters, from OpenAI schemas; {} for a tool without parameters."""
    functions = [schema.get("function", schema) for schema in schemas]
    return {
        str(function["name"]): function.get("parameters") or {}
        for function in functions
        if "name" in function
    }


def perturb(
    operator: Operator, places: Sequence[Place], step: int, schemas: Schemas, chance: Random
) -> Iterator[WrongCall]:
    """Yield the wrong calls of an operator that replace call number `step`."""
    return _FUNCTIONS[operator](places, step, schemas, chance)


def _list_wrong_arguments(
    places: Sequence[Place], step: int, schemas: Schemas, chance: Random
) -> Iterator[WrongCall]:
    place = places[step]
    call = place.call
    if isinstance(call.arguments, str):
        return
    schema = schemas.get(call.name, {})
    required = schema.get("required", list(call.arguments))
    properties = schema.get("properties", {})
    changes = [
        (name, change)
        for name in call.arguments
        for change in (_ARGUMENT_CHANGES if name in required else _OPTIONAL_CHANGES)
    ]
    chance.shuffle(changes)
    for name, change in changes:
        arguments = change(dict(call.arguments), name, properties, place.seen, chance)
        if arguments is not None and arguments != call.arguments:
            yield WrongCall("argument", call.name, arguments)


_Change = Callable[[Arguments, str, Mapping[str, Any], SeenValues, Random], Arguments | None]
"""Function that returns the arguments with one of them changed, or None if it cannot change it."""


def _drop(arguments: Arguments, name: str, *_: Any) -> Arguments | None:
    del arguments[name]
    return arguments


def _change_type(arguments: Arguments, name: str, *_: Any) -> Arguments | None:
    value = arguments[name]
    if isinstance(value, str):
        other: Any = int(value) if value.isdecimal() and len(value) < 16 else [value]
    elif isinstance(value, bool | int | float):
        other = str(value).lower() if isinstance(value, bool) else WRONG_TEXT
    elif isinstance(value, list) and value:
        other = value[0]
    else:
        other = WRONG_TEXT
    return {**arguments, name: other}


def _rename(
    arguments: Arguments, name: str, properties: Mapping[str, Any], _: SeenValues, chance: Random
) -> Arguments | None:
    aliases = [
        _CAPITAL.sub(lambda match: match[1].upper(), name),
        name.removesuffix("_id").removesuffix("_ids"),
        f"{name}_value" if "_" not in name else name.rpartition("_")[2],
    ]
    usable = [alias for alias in aliases if alias not in properties and alias not in arguments]
    if not usable:
        return None
    alias = chance.choice(usable)
    return {alias if key == name else key: value for key, value in arguments.items()}


def _shift(
    arguments: Arguments, name: str, _: Mapping[str, Any], __: SeenValues, chance: Random
) -> Arguments | None:
    value = arguments[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return {**arguments, name: value + chance.choice((-1, 1))}


def _take_other_entity(
    arguments: Arguments, name: str, _: Mapping[str, Any], seen: SeenValues, chance: Random
) -> Arguments | None:
    value = arguments[name]
    single = value[0] if isinstance(value, list) and value else value
    if not isinstance(single, str):
        return None
    others = seen.find_others(name, single)
    if not others:
        return None
    other = chance.choice(others)
    return {**arguments, name: [other, *value[1:]] if isinstance(value, list) else other}


_OPTIONAL_CHANGES: Final[tuple[_Change, ...]] = (
    lambda arguments, name, *_: {**arguments, name: -1},
    _change_type,
    _rename,
    _shift,
    _take_other_entity,
)
_ARGUMENT_CHANGES: Final[tuple[_Change, ...]] = (
    _drop,
    lambda arguments, name, *_: {**arguments, name: None},
    *_OPTIONAL_CHANGES,
)


def _repeat(places: Sequence[Place], step: int, *_: Any) -> Iterator[WrongCall]:
    call = places[step].call
    yield WrongCall("redundant", call.name, call.arguments, times=2)


def _take_next(
    places: Sequence[Place], step: int, _: Schemas, chance: Random
) -> Iterator[WrongCall]:
    if step + 1 < len(places):
        yield from _take_later("swap", places, step, step + 1, chance)


def _leave_out(
    places: Sequence[Place], step: int, schemas: Schemas, chance: Random
) -> Iterator[WrongCall]:
    """Yield later calls (not the next one) and calls of other tools, alternating at random."""
    later = [
        _take_later("missing", places, step, number, chance)
        for number in range(step + 2, len(places))
    ]
    kinds = [chain.from_iterable(later), _call_other_tool(places[step], schemas, chance)]
    if chance.random() < 0.5:
        kinds.reverse()
    for pair in zip_longest(*kinds):
        yield from (wrong for wrong in pair if wrong is not None)


def _call_other_tool(place: Place, schemas: Schemas, chance: Random) -> Iterator[WrongCall]:
    others = [name for name in schemas if name != place.call.name]
    chance.shuffle(others)
    for name in others:
        arguments = _fill(place, schemas[name])
        if arguments is not None:
            yield WrongCall("missing", name, arguments)


def _take_later(
    operator: Operator, places: Sequence[Place], step: int, later: int, chance: Random
) -> Iterator[WrongCall]:
    """Yield a later call, made now. Each value not yet seen is replaced by a seen one of its kind,
    else by one with a digit, else left out."""
    place, call = places[step], places[later].call
    if call.name == place.call.name or isinstance(call.arguments, str):
        return
    seen, known = place.seen, places[step + 1].seen
    unseen = {name: value for name, value in call.arguments.items() if not seen.has(value)}
    dependent = any(known.has(value) for value in unseen.values())
    for values in _draw_replacements(unseen, seen, chance):
        arguments = {
            name: values.get(name, value)
            for name, value in call.arguments.items()
            if name in values or name not in unseen
        }
        yield WrongCall(
            operator, call.name, arguments, comes_too_early=True, is_dependent=dependent
        )


def _draw_replacements(unseen: Arguments, seen: SeenValues, chance: Random) -> Iterator[Arguments]:
    """Yield seen values for unseen ones, without arguments that have none; at last, no values."""
    candidates: dict[str, list[str]] = {}
    for name, value in unseen.items():
        others = seen.find_others(name, value) or seen.list_texts()
        candidates[name] = chance.sample(others, min(len(others), _REPLACEMENTS))
    count = max(map(len, candidates.values()), default=0)
    for place in range(count):
        values = {name: own[place % len(own)] for name, own in candidates.items() if own}
        yield {
            name: [value] if isinstance(unseen[name], list) else value
            for name, value in values.items()
        }
    yield {}


def _fill(place: Place, schema: Mapping[str, Any]) -> Arguments | None:
    """Return a tool's required arguments, seen or from the right call; None if one has no value."""
    own = place.call.arguments
    if isinstance(own, str):
        return None
    arguments: Arguments = {}
    for name in schema.get("required", ()):
        property_schema = schema.get("properties", {}).get(name, {})
        choices = property_schema.get("enum") or place.seen.find_others(name, None)
        if name in own:
            arguments[name] = own[name]
        elif choices:
            arguments[name] = choices[0]
        elif property_schema.get("type") == "string" and (texts := place.seen.list_texts()):
            arguments[name] = texts[-1]
        else:
            return None
    return arguments


_FUNCTIONS: Final[
    Mapping[
        Operator,
        Callable[[Sequence[Place], int, Schemas, Random], Iterator[WrongCall]],
    ]
] = {
    "argument": _list_wrong_arguments,
    "redundant": _repeat,
    "swap": _take_next,
    "missing": _leave_out,
}
