"""Tools: typed methods over a database, called by a model that may get anything wrong.

    class ShopTools(Toolset):
        @read
        def get_order(self, order_id: Annotated[str, Field(description="Its id.")]) -> Any:
            "Look up one order."

The signature is the contract: pydantic makes the OpenAI schema and the check of arguments from it.
A tool refuses a call by raising `ToolError`; the agent reads its text. `call` returns a result for
every input of a model and raises nothing.

A class with `validates = False` behaves like tau2-bench: types are not checked, and the text of
any exception is the answer.
"""

import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from envs.database import Database, copy_json
from events.errors import KintsugiError
from events.messages import Requestor

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal["read", "write", "generic"]
"""`read` changes nothing, `write` changes the database, `generic` does not touch the state."""

MAX_ARGUMENT_CHARACTERS: Final = 65_536
"""Largest length of a call's arguments, roughly as JSON: ten times the need of any task."""

MAX_ARGUMENT_DEPTH: Final = 16
"""Deepest nesting of arguments. Tools need less than half, and the stack cannot overflow."""

_SHORT: Final = 10_000
_FEW: Final = 100
"""So few arguments, with so few characters in all (`_SHORT`), pass without exact measurement."""

_INTEGER_BITS: Final = sys.float_info.max_exp - 1
"""Largest size in bits of an integer that arithmetic with floats can take."""

_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")

# One encoder for all calls: json.dumps with options would build one at every call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)

_KIND: Final = "__tool_kind__"
_DECLARED: Final = "__tools_declared__"


class ToolError(KintsugiError):
    """A tool refuses a call. The text is its answer to the agent."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer of a tool to one call."""

    content: str
    error: bool = False
    malformed: bool = False
    """Whether the call itself was wrong: no JSON, an unknown tool, or arguments that do not fit."""
    defect: str | None = None
    """Description of an exception that no tool should raise, for the environment's maintainer."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its method declares it."""

    name: str
    kind: Kind
    arguments: type[BaseModel]
    schema: Mapping[str, Any]
    """The tool in OpenAI's function format."""
    parameters: tuple[str, ...]
    """Names of the arguments, in the order of declaration."""


def read(method: F) -> F:
    """Mark a method as a tool that changes nothing."""
    return _mark(method, "read")


def write(method: F) -> F:
    """Mark a method as a tool that changes the database."""
    return _mark(method, "write")


def generic(method: F) -> F:
    """Mark a method as a tool that does not touch the state, such as arithmetic or a transfer."""
    return _mark(method, "generic")


class Toolset:
    """The tools of one party of an environment, which act on one state."""

    validates: ClassVar[bool] = True

    def __init__(self, database: Database) -> None:
        self.database = database

    def fork(self, database: Database) -> Self:
        """Return the same tools over `database`, with copies of everything else that they hold."""
        other = object.__new__(type(self))
        if len(vars(self)) > 1:
            held = {name: value for name, value in vars(self).items() if name != "database"}
            vars(other).update(deepcopy(held, {id(self.database): database}))
        other.database = database
        return other

    def has_same_state(self, other: Self) -> bool:
        """Return whether both toolsets act on equal states. Toolsets with state outside the
        database override this."""
        return self.database.same(other.database)

    @classmethod
    def tools(cls) -> Mapping[str, Tool]:
        """Return name -> tool, in the order of declaration."""
        tools = vars(cls).get(_DECLARED)
        if tools is None:
            setattr(cls, _DECLARED, tools := _collect_tools(cls))
        return cast("Mapping[str, Tool]", tools)

    @classmethod
    def schemas(cls) -> list[dict[str, Any]]:
        """Return the schemas of all tools in OpenAI's function format."""
        return [dict(tool.schema) for tool in cls.tools().values()]

    def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        """Run one tool. `arguments` is a string if the model wrote something other than JSON."""
        tool = self.tools().get(name)
        if tool is None:
            return _reject_call(f"Tool '{name[:100]}' not found.")
        if isinstance(arguments, str):
            return _reject_call(
                f"the arguments of {name} are not a JSON object: {arguments[:100]!r}"
            )
        problem = unusable(arguments)
        if problem is not None:
            return _reject_call(f"the arguments of {name} {problem}")
        try:
            # Both cases copy, because a tool must not keep objects of the transcript.
            values = _validate(tool, arguments) if self.validates else copy_json(dict(arguments))
        except ValidationError as error:
            return _reject_call(_explain(name, error))
        return self._run(name, values)

    def _run(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            return ToolResult(self.render(getattr(self, name)(**arguments)))
        except ToolError as refusal:
            return ToolResult(f"Error: {refusal}", error=True)
        except Exception as error:
            defect = None if not self.validates else f"{name}: {type(error).__name__}: {error}"
            return ToolResult(f"Error: {error}", error=True, defect=defect)

    def render(self, value: Any) -> str:
        """Return a tool's value as the agent reads it: a string unchanged, other values as JSON."""
        return value if isinstance(value, str) else _ENCODER.encode(value)


class ToolAccess:
    """The tools of both parties over one state.

        access = ToolAccess(AgentTools(database), UserTools(database))
        access.call("get_line", {...})                      the agent
        access.call("toggle_data", {}, requestor="user")    the user

    In dual control a party cannot call the other party's tools. In a solo task the agent can call
    both. As with `Toolset.call`, a call returns a result and raises nothing.
    """

    __slots__ = ("_agent", "_solo", "_user", "database")

    def __init__(self, agent: Toolset, user: Toolset | None = None, *, solo: bool = False) -> None:
        """`user`: the user's tools, over the same database; with `solo`, the agent calls them."""
        self.database: Database = agent.database
        self._agent = agent
        self._user = user
        self._solo = solo

    def fork(self, database: Database) -> "ToolAccess":
        """Return access to the same tools over `database`, which is a copy of theirs."""
        user = None if self._user is None else self._user.fork(database)
        return ToolAccess(self._agent.fork(database), user, solo=self._solo)

    def has_same_state(self, other: "ToolAccess") -> bool:
        """Return whether the tools of both parties act on states equal to `other`'s."""
        if self._user is not None and other._user is not None:
            return self._user.has_same_state(other._user) and self._agent.has_same_state(
                other._agent
            )
        return self._agent.has_same_state(other._agent)

    def call(
        self, name: str, arguments: Mapping[str, Any] | str, requestor: Requestor = "assistant"
    ) -> ToolResult:
        """Run one tool for a party, as `Toolset.call` does."""
        if requestor == "user":
            if self._user is None or self._solo:
                return _reject_call("the user has no tools.")
            return self._user.call(name, arguments)
        if self._solo and self._user is not None and name in self._user.tools():
            return self._user.call(name, arguments)
        return self._agent.call(name, arguments)


def _mark(method: F, kind: Kind) -> F:
    setattr(method, _KIND, kind)
    return method


def _collect_tools(toolset: type[Toolset]) -> Mapping[str, Tool]:
    tools: dict[str, Tool] = {}
    for owner in reversed(toolset.__mro__):
        # A copy, because another thread may set `_DECLARED` on the class at the same time.
        for name, method in list(vars(owner).items()):
            kind = getattr(method, _KIND, None)
            if kind is not None:
                tools[name] = _tool(name, method, kind)
    return tools


def _tool(name: str, method: Callable[..., Any], kind: Kind) -> Tool:
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name not in hints:
            raise TypeError(f"parameter {parameter.name} of tool {name} has no type; annotate it")
        required = parameter.default is inspect.Parameter.empty
        default = ... if required else parameter.default
        # An alias, because names such as `copy` and `json` are attributes of every pydantic model.
        field = Field(default, alias=parameter.name)
        fields[_field(parameter.name)] = (hints[parameter.name], field)
    model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    description = inspect.cleandoc(method.__doc__ or "")
    function = {"name": name, "description": description, "parameters": _parameters(model)}
    schema = {"type": "function", "function": function}
    return Tool(name, kind, model, schema, tuple(str(f.alias) for f in model.model_fields.values()))


def _parameters(model: type[BaseModel]) -> dict[str, Any]:
    schema: dict[str, Any] = _without_titles(model.model_json_schema())
    schema.setdefault("properties", {})
    schema.pop("additionalProperties", None)
    return schema


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic adds, because they only repeat names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(value) for name, value in item.items()}
        if key in ("properties", "$defs")
        else _without_titles(item)
        for key, item in schema.items()
        if key != "title"
    }


def _validate(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with the tool's types, checked strictly: "3" is no number. In JSON,
    dates and members of enums are strings. Raise pydantic's ValidationError."""
    checked = tool.arguments.model_validate_json(to_json(dict(arguments)), strict=True)
    return {name: getattr(checked, _field(name)) for name in tool.parameters}


def _field(parameter: str) -> str:
    return f"argument_{parameter}"


def _explain(name: str, error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{name}: {where}: {problem['msg']}"


def _reject_call(message: str) -> ToolResult:
    return ToolResult(f"Error: {message}", error=True, malformed=True)


def unusable(arguments: Mapping[str, Any]) -> str | None:
    """Return the reason why no tool accepts these arguments, as a verb with its object, or None.
    Accepted arguments can be copied, printed, hashed and stored without an exception."""
    if len(arguments) <= _FEW and _are_plain(arguments):
        return None
    length, level = 0, [dict(arguments)]
    for _ in range(MAX_ARGUMENT_DEPTH):
        try:
            length += sum(map(_own_length, level))
        except _NoJson as error:
            return f"hold {error}"
        if length > MAX_ARGUMENT_CHARACTERS:
            return f"are longer than {MAX_ARGUMENT_CHARACTERS} characters"
        level = [
            child
            for item in level
            if isinstance(item, dict | list | tuple)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return None
    return f"are nested deeper than {MAX_ARGUMENT_DEPTH} levels"


def _are_plain(arguments: Mapping[str, Any]) -> bool:
    """Return whether all arguments are strings, short in all and ASCII, as most are."""
    try:
        text = "".join([*arguments, *arguments.values()])
    except TypeError:  # one is no text
        return False
    return len(text) <= _SHORT and text.isascii()


class _NoJson(ValueError):
    """A value is not allowed in JSON. The text names it."""


def _own_length(value: Any) -> int:
    """Return the length of a value in characters, without the values inside it. Raise _NoJson."""
    if isinstance(value, str):
        return 2 + _length(value)
    if isinstance(value, dict):
        return 2 + sum(4 + _length(key) for key in value)
    if isinstance(value, list | tuple):
        return 2 + 2 * len(value)
    if value is None or isinstance(value, bool):
        return 5
    if isinstance(value, int | float):
        return _digits(value)
    raise _NoJson(f"a {type(value).__name__}, which JSON has not")


def _length(text: Any) -> int:
    if not isinstance(text, str):
        raise _NoJson(f"the key {text!r}, which is no string")
    if not text.isascii() and _HALF_PAIR.search(text):
        raise _NoJson("half of a surrogate pair, which is no character")
    return len(text)


def _digits(number: float) -> int:
    """Return about the length of a number in characters, without writing out a huge integer."""
    if isinstance(number, int):
        if number.bit_length() > _INTEGER_BITS:
            raise _NoJson(f"an integer of more than {_INTEGER_BITS} bits")
        return number.bit_length() // 3 + 1
    if not math.isfinite(number):
        raise _NoJson(f"the number {number}, which JSON has not")
    return len(repr(number))
