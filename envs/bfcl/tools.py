"""The tools of one BFCL case: the public methods of its classes. They are called with the model's
values, never with code. Answers are as BFCL writes them: a string unchanged, an object as JSON if
possible, other values as Python prints them. An exception is `Error during execution: ` and its
text.

The objects hold the state. The `Database` holds only their initial data. So a fork is cheap, and
every toolset makes objects of its own.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from decimal import localcontext
from functools import cached_property
from random import Random
from typing import Any, Final, Self

from envs.bfcl.cases import LONG_CONTEXT, Case
from envs.bfcl.classes import instance
from envs.database import Database, copy_json
from envs.tools import ToolResult, Toolset, unusable

CLASSES: Final = "classes"
"""The table that maps each class to its initial state."""

_CASE: Final = "case"
_FAILED: Final = "Error during execution: "

_LARGEST: Final = 10_000
_BOUNDED: Final = frozenset({"precision", "decimal_places", "exponent"})
"""Integer arguments that decide how long arithmetic takes. Python prints no integer with more
digits than the limit, so larger values would fail anyway."""


def initial_state(case: Case) -> Database:
    """Return the state at the beginning of a case."""
    begins = {"long_context": case.split == LONG_CONTEXT}
    return Database({CLASSES: case.config, _CASE: begins})


class BfclTools(Toolset):
    """The methods of a case's classes as tools, and the objects that they act on."""

    @cached_property
    def objects(self) -> dict[str, Any]:
        """Class -> this toolset's own object of that class. Raises NoBfclClasses."""
        long_context = self.database[_CASE]["long_context"]
        return {
            name: instance(name, config, long_context)
            for name, config in self.database[CLASSES].items()
        }

    @cached_property
    def methods(self) -> dict[str, Callable[..., Any]]:
        """All tools by name, including those that the agent does not see."""
        return {
            name: method
            for owner in self.objects.values()
            for name, method in inspect.getmembers(owner, inspect.ismethod)
            if not name.startswith("_")
        }

    def has_same_state(self, other: Self) -> bool:
        """Return whether all objects of both toolsets have equal attributes."""
        return self.objects.keys() == other.objects.keys() and all(
            _has_same_attributes(value, other.objects[name]) for name, value in self.objects.items()
        )

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Run one method. No input of a model raises an exception; only NoBfclClasses is raised."""
        method = self.methods.get(name)
        if method is None:
            return _reject_call(f"name {name[:100]!r} is not defined")
        if isinstance(arguments, str):
            return _reject_call(f"the arguments are not a JSON object: {arguments[:100]!r}")
        problem = unusable(arguments) or _too_large(arguments)
        if problem is not None:
            return _reject_call(f"the arguments {problem}")
        return _run(method, copy_json(dict(arguments)))


def _has_same_attributes(instance: Any, other: Any) -> bool:
    mine, others = vars(instance), vars(other)
    return mine.keys() == others.keys() and all(
        value.getstate() == others[name].getstate()
        if isinstance(value, Random)
        else value == others[name]
        for name, value in mine.items()
    )


def _run(method: Callable[..., Any], arguments: dict[str, Any]) -> ToolResult:
    try:
        # A method may change the precision of decimals, which is ours too.
        with localcontext():
            value = method(**arguments)
            return ToolResult(
                _format_answer(value), error=isinstance(value, dict) and "error" in value
            )
    except Exception as error:
        return ToolResult(f"{_FAILED}{error}", error=True, malformed=not _fits(method, arguments))


def _format_answer(value: Any) -> str:
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
    return str(value)


def _fits(method: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(method).bind(**arguments)
    except TypeError:
        return False
    return True


def _too_large(arguments: Mapping[str, Any]) -> str | None:
    for name in _BOUNDED & arguments.keys():
        value = arguments[name]
        if isinstance(value, int) and abs(value) > _LARGEST:
            return f"hold a value of {name} beyond {_LARGEST:,}"
    return None


def _reject_call(text: str) -> ToolResult:
    return ToolResult(f"{_FAILED}{text}", error=True, malformed=True)
