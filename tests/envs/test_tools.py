"""Tools, called by a model that may get anything wrong."""

import json
from collections.abc import Callable
from copy import deepcopy
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from envs.database import Database
from envs.tools import (
    MAX_ARGUMENT_CHARACTERS,
    MAX_ARGUMENT_DEPTH,
    ToolError,
    ToolResult,
    Toolset,
    generic,
    read,
    unusable,
    write,
)
from events.messages import ToolCall
from tests.envs.mini import Mini, MiniTools, task

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from(["w1", "late", 10**400, -(10**2000), 1e308, "\ud800", "w1\udfff", ""]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
ARGUMENT_NAMES = st.sampled_from(
    ["order_id", "reason", "notes", "place", "copy", "ratio", "many", "sure"]
)
ARGUMENTS = st.dictionaries(ARGUMENT_NAMES | st.text(max_size=5), ANYTHING, max_size=6)
TOOLS = st.sampled_from([*MiniTools.tools(), "schemas", "call", "__init__", "database", ""])


class Colour(Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


class Typed(Toolset):
    """A tool with types that JSON writes as something else, and a toolset that checks none."""

    @read
    def look(
        self,
        day: date,
        colour: Colour,
        pair: tuple[int, str],
        either: int | str,
        few: Annotated[list[int], Field(max_length=2)],
        amount: Annotated[float, Field(ge=0)],
        some: list[str] = [],  # noqa: B006 - what a default that is changed does
    ) -> Any:
        """Give back what was given."""
        some.append("seen")
        return [day.isoformat(), colour.value, list(pair), either, few, amount, some]


GOOD: dict[str, Any] = {
    "day": "2024-05-15",
    "colour": "red",
    "pair": [1, "a"],
    "either": "x",
    "few": [1, 2],
    "amount": 3,
}


class Unchecked(Toolset):
    """tau2-bench's way: any exception's own text is the answer."""

    validates = False

    @write
    def keep(self, key: Any, value: Any) -> str:
        """Keep a value as it is."""
        self.database.put("kept", key, value)
        return f"kept under {key}"

    @generic
    def divide(self, by: Any) -> Any:
        """Divide one by it."""
        return 1 / by


def tools() -> MiniTools:
    """The tools of mini on a fresh state."""
    return MiniTools(Mini().reset(task()))


def readable(result: ToolResult) -> bool:
    """Whether the answer can be stored and sent."""
    return result.content.encode() is not None and len(result.content) < 1_000_000


@settings(deadline=None, max_examples=150)
@given(TOOLS, ARGUMENTS | st.text())
def test_whatever_is_called_there_is_a_readable_answer_and_a_state(
    name: str, arguments: dict[str, Any] | str
) -> None:
    given = tools()
    before = deepcopy(arguments)
    result = given.call(name, arguments)
    assert readable(result)
    assert repr(arguments) == repr(before), "a tool changed the arguments"
    assert result.error or not result.malformed
    assert given.database.digest()
    if name != "broken":
        assert result.defect is None


@settings(deadline=None, max_examples=60)
@given(ARGUMENTS | st.text())
def test_a_toolset_that_checks_nothing_answers_and_keeps_json_too(
    arguments: dict[str, Any] | str,
) -> None:
    given = Unchecked(Database({"kept": {}}))
    for name in ("keep", "divide"):
        assert readable(given.call(name, arguments))
    if isinstance(arguments, dict) and "order_id" in arguments:
        value = arguments["order_id"]
        assert readable(given.call("keep", {"key": "k", "value": value}))
    assert given.database.digest()


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "integer": st.integers(-(10**18), 10**18),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
}


def fitting(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a JSON schema, by what mini's schemas hold."""
    if "$ref" in schema:
        return fitting(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return st.one_of([fitting(one, definitions) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "array":
        return st.lists(fitting(schema["items"], definitions), max_size=3)
    if schema.get("type") == "object":
        inner = schema.get("properties", {})
        needed = {name: fitting(inner[name], definitions) for name in schema.get("required", [])}
        free = {
            name: fitting(value, definitions) for name, value in inner.items() if name not in needed
        }
        return st.fixed_dictionaries(needed, optional=free)
    return VALUES[schema["type"]]


@settings(deadline=None)
@given(st.data(), st.sampled_from([name for name in MiniTools.tools() if name != "broken"]))
def test_what_fits_the_schema_is_never_malformed(data: st.DataObject, name: str) -> None:
    parameters = MiniTools.tools()[name].schema["function"]["parameters"]
    arguments = data.draw(fitting(parameters, parameters.get("$defs", {})))
    result = tools().call(name, arguments)
    assert not result.malformed, result.content
    assert result.defect is None


@settings(deadline=None)
@given(st.data(), st.sampled_from([name for name in MiniTools.tools() if name != "broken"]))
def test_what_lacks_a_required_argument_or_has_another_is_malformed(
    data: st.DataObject, name: str
) -> None:
    parameters = MiniTools.tools()[name].schema["function"]["parameters"]
    arguments = data.draw(fitting(parameters, parameters.get("$defs", {})))
    missing = data.draw(st.sampled_from(parameters["required"]))
    less = {given: value for given, value in arguments.items() if given != missing}
    for wrong in (less, {**arguments, "unheard_of": 1}):
        result = tools().call(name, wrong)
        assert (result.malformed, result.error) == (True, True)
        assert name in result.content


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("get_order", {"order_id": 3}, "get_order: order_id: Input should be a valid string"),
        ("get_order", {}, "get_order: order_id: Field required"),
        ("cancel_order", {"order_id": "w1", "reason": "x"}, "reason: Input should be 'late' or"),
        ("note", {"order_id": "w1", "notes": "all"}, "notes: Input should be a valid"),
        ("get_order", "order w1", "the arguments of get_order are not a JSON object: 'order w1'"),
        ("get_ordr", {"order_id": "w1"}, "Tool 'get_ordr' not found."),
        ("x" * 500, {}, f"Tool '{'x' * 100}' not found."),
    ],
)
def test_a_wrong_call_is_told_what_is_wrong(
    name: str, arguments: dict[str, Any] | str, said: str
) -> None:
    result = tools().call(name, arguments)
    assert (result.error, result.malformed, result.defect) == (True, True, None)
    assert result.content.startswith("Error: ")
    assert said in result.content


def nested(depth: int) -> Any:
    """A list of lists, so many of them."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def looped() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "hold the number nan, which JSON has not"),
        (float("-inf"), "hold the number -inf, which JSON has not"),
        (10**5000, "hold an integer of more than 1023 bits"),
        ("a\ud800", "hold half of a surrogate pair, which is no character"),
        ({"\udc00": 1}, "hold half of a surrogate pair, which is no character"),
        ({1: 2}, "hold the key 1, which is no string"),
        ({1, 2}, "hold a set, which JSON has not"),
        (nested(MAX_ARGUMENT_DEPTH), f"are nested deeper than {MAX_ARGUMENT_DEPTH} levels"),
        (nested(100_000), f"are nested deeper than {MAX_ARGUMENT_DEPTH} levels"),
        (looped(), f"are nested deeper than {MAX_ARGUMENT_DEPTH} levels"),
        ("x" * MAX_ARGUMENT_CHARACTERS, f"are longer than {MAX_ARGUMENT_CHARACTERS} characters"),
        ([0] * MAX_ARGUMENT_CHARACTERS, f"are longer than {MAX_ARGUMENT_CHARACTERS} characters"),
    ],
    ids=lambda value: None if isinstance(value, str) and value.startswith(("hold", "are")) else "",
)
def test_arguments_that_cannot_be_stored_reach_no_tool(value: Any, why: str) -> None:
    kept = Unchecked(Database({"kept": {}}))
    for called, name, arguments in (
        (tools(), "strange", {"place": {"street": "s"}, "copy": {"v": value}, "ratio": 1}),
        (kept, "keep", {"key": "k", "value": value}),
    ):
        before = called.database.digest()
        result = called.call(name, arguments)
        assert result == ToolResult(
            f"Error: the arguments of {name} {why}", error=True, malformed=True
        )
        assert called.database.digest() == before


def test_the_deepest_and_longest_arguments_that_may_be_are_taken() -> None:
    assert unusable({"v": nested(MAX_ARGUMENT_DEPTH - 1)}) is None
    assert unusable({"v": "x" * (MAX_ARGUMENT_CHARACTERS - 100)}) is None
    assert unusable({"v": 2**1023 - 1, "w": (1, 2)}) is None


@pytest.mark.parametrize("toolset", [MiniTools, Unchecked])
def test_what_a_tool_keeps_is_not_the_transcripts(toolset: Callable[[Database], Toolset]) -> None:
    """A later write in place must not change what the agent is on record to have said."""
    database = Database({"orders": {"w1": {}}, "kept": {}})
    notes = ["a"]
    call = ToolCall(name="note", arguments={"order_id": "w1", "notes": notes})
    assert isinstance(call.arguments, dict)
    if toolset is MiniTools:
        assert MiniTools(database).call("note", call.arguments).content == "noted"
        database.edit("orders", "w1")["notes"].append("b")
    else:
        Unchecked(database).call("keep", {"key": "k", "value": notes})
        database["kept"]["k"].append("b")
    assert notes == ["a"]
    assert call.arguments["notes"] == ["a"]


def test_types_that_json_writes_as_something_else_are_checked_as_the_schema_says() -> None:
    given = Typed(Database({}))
    result = given.call("look", GOOD)
    assert not result.error, result.content
    assert json.loads(result.content) == [
        "2024-05-15", "red", [1, "a"], "x", [1, 2], 3.0, ["seen"],
    ]  # fmt: skip
    properties = Typed.schemas()[0]["function"]["parameters"]["properties"]
    assert properties["day"] == {"format": "date", "type": "string"}
    assert json.loads(given.call("look", GOOD).content)[-1] == ["seen"], "a default was changed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"day": "tomorrow"}, {"day": 5}, {"colour": "green"}, {"colour": "RED"}, {"pair": [1]},
        {"pair": ["1", "a"]}, {"either": None}, {"either": 1.5}, {"few": [1, 2, 3]},
        {"few": [True]}, {"amount": -1}, {"amount": "3"}, {"amount": True}, {"some": "abc"},
        {"some": None},
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_malformed(wrong: dict[str, Any]) -> None:
    result = Typed(Database({})).call("look", GOOD | wrong)
    assert result.malformed, result.content
    assert next(iter(wrong)) in result.content


def test_a_defect_is_told_apart_from_a_refusal() -> None:
    given = tools()
    refused = given.call("get_order", {"order_id": "w9"})
    assert refused == ToolResult("Error: no order 'w9'", error=True)
    broken = given.call("broken", {})
    assert (broken.error, broken.malformed) == (True, False)
    assert broken.defect == "broken: ZeroDivisionError: by zero"
    unchecked = Unchecked(Database({"kept": {}})).call("divide", {"by": 0})
    assert unchecked == ToolResult("Error: division by zero", error=True)


def test_a_schema_says_what_a_tool_takes() -> None:
    function = MiniTools.schemas()[1]["function"]
    assert function == {
        "name": "cancel_order",
        "description": "Cancel a pending order.",
        "parameters": {
            "type": "object",
            "properties": {
                "order_id": {"type": "string"},
                "reason": {"default": "late", "enum": ["late", "dear"], "type": "string"},
            },
            "required": ["order_id"],
        },
    }
    described = MiniTools.schemas()[0]["function"]["parameters"]["properties"]
    assert described == {"order_id": {"description": "Such as w1.", "type": "string"}}
    assert MiniTools.tools()["strange"].parameters == ("place", "copy", "ratio", "many", "sure")
    assert json.loads(json.dumps(MiniTools.schemas())) == MiniTools.schemas()


def test_a_subclass_adds_to_and_replaces_the_tools_it_inherits() -> None:
    class More(MiniTools):
        @read
        def get_order(self, order_id: Literal["w1"]) -> Any:  # type: ignore[override]
            """Look up the first order."""
            return "the first"

        @write
        def close(self) -> str:
            """Close the shop."""
            raise ToolError("never")

    assert list(More.tools()) == [*MiniTools.tools(), "close"]
    more = More(Mini().reset(task()))
    assert more.call("get_order", {"order_id": "w1"}).content == "the first"
    assert more.call("get_order", {"order_id": "w2"}).malformed
    assert more.call("close", {}) == ToolResult("Error: never", error=True)
    assert "close" not in MiniTools.tools()


def test_an_answer_that_is_no_json_is_a_defect_and_not_an_exception() -> None:
    class Odd(Toolset):
        @read
        def odd(self) -> Any:
            """Give back what cannot be written."""
            return {1, 2}

    result = Odd(Database({})).call("odd", {})
    assert result.error
    assert result.defect is not None
    assert "not JSON serializable" in result.defect
