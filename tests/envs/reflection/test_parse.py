"""What is a call, a reflection, a final answer; and what is none of them."""

import json
from typing import Any

import pytest

from envs.reflection.parse import MAX_DEPTH, MAX_DIGITS, Parts, are_calls_equal, parse


def tagged(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def names(text: str) -> list[str]:
    return [call.name for call in parse(text).calls]


def test_a_completion_has_a_reflection_calls_and_a_final_answer() -> None:
    found = parse(
        f"<think>Hm.</think><reflect>\nThe id was null.\n</reflect>\n\n{tagged('f', a=1)}\n"
        f"{tagged('g')}<final> Done. </final>"
    )
    assert (found.reflection, found.final) == ("The id was null.", "Done.")
    assert [(call.name, call.arguments) for call in found.calls] == [("f", {"a": 1}), ("g", {})]
    assert (found.tagged, found.malformed) == (2, False)


def test_calls_are_read_in_the_form_of_llama_too() -> None:
    call = '{"name": " f ", "parameters": {"a": [1, "]"]}}'
    for text in (f"[{call}]", call, f"So: [{call}, {call}].", f"a [b] {{c}} {call} [d"):
        assert set(names(text)) == {"f"}, text
    assert len(names(f"So: [{call}, {call}].")) == 2
    assert parse(f"<reflect>no</reflect>[{call}]").calls[0].arguments == {"a": [1, "]"]}


@pytest.mark.parametrize("tag", ["reflect", "think", "REFLECT"])
@pytest.mark.parametrize(
    "quotation",
    [
        '{"name": "f", "parameters": {"a": null}}',
        '[{"name": "f", "parameters": {}}]',
        tagged("f", a=None),
        "<final>no</final>",
    ],
)
def test_what_a_reflection_or_a_thought_quotes_is_no_call(tag: str, quotation: str) -> None:
    found = parse(f"<{tag}>It called {quotation}.</{tag}>{tagged('g')}")
    assert [call.name for call in found.calls] == ["g"]
    assert found.final == ""
    assert not found.malformed


@pytest.mark.parametrize(
    "block",
    [
        "",
        "f(a=1)",
        "{",
        '{"name": "f"}',
        '{"name": "f", "arguments": {}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": 3, "arguments": {}}',
        '[{"name": "f", "arguments": {}}]',
        '{"name": "f", "arguments": {}} and more',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": -Infinity}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": ' + "9" * (MAX_DIGITS + 1) + "}}",
        '{"name": "f", "arguments": {"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}}",
        '{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    ],
    ids=lambda block: block[:40],
)
def test_a_block_that_holds_no_call_is_ignored_and_malformed(block: str) -> None:
    found = parse(f"<tool_call>{block}</tool_call>{tagged('g')}")
    assert [call.name for call in found.calls] == ["g"]
    assert found.malformed


def test_brackets_in_strings_are_no_nesting() -> None:
    arguments = {"a": "[" * 10_000, "b": '\\"{' * 10_000, "c": ["\\"] * 200}
    assert parse(tagged("f", **arguments)).calls[0].arguments == arguments
    nested = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert names(f'<tool_call>{{"name": "f", "arguments": {{"a": {nested}}}}}</tool_call>') == []
    nested = nested[1:-1]
    assert names(f'<tool_call>{{"name": "f", "arguments": {{"a": {nested}}}}}</tool_call>') == ["f"]


@pytest.mark.parametrize("text", ["<tool_call>", "</tool_call>", "<tool_call>{}", "<TOOL_CALL>"])
def test_a_tag_that_is_left_over_is_malformed(text: str) -> None:
    assert parse(text).malformed
    assert parse(f"{tagged('f')}{text}").malformed


def test_an_unclosed_reflection_is_text() -> None:
    found = parse(f"<reflect>The id was null. {tagged('f')}")
    assert (found.reflection, [call.name for call in found.calls]) == ("", ["f"])


def test_calls_are_equal_in_any_order_and_as_often() -> None:
    def calls(*texts: str) -> Any:
        return parse("".join(texts)).calls

    f, g = tagged("f", a=1, b=[1, {"c": 2}]), tagged("g")
    same = '<tool_call>{"arguments": {"b": [1, {"c": 2}], "a": 1}, "name": " f"}</tool_call>'
    assert are_calls_equal(calls(f, g), calls(g, same))
    assert are_calls_equal(calls(f), calls('[{"name":"f","parameters":{"b":[1,{"c":2}],"a":1}}]'))
    assert not are_calls_equal(calls(f, f, g), calls(f, g, g))
    assert not are_calls_equal(calls(f), calls(f, f))
    assert not are_calls_equal(calls(f), calls(tagged("f", a="1", b=[1, {"c": 2}])))
    assert not are_calls_equal(calls(tagged("f", a=True)), calls(tagged("f", a=1)))
    assert are_calls_equal((), ())


@pytest.mark.parametrize(
    "unit",
    [
        "<think>", "<reflect>", "<tool_call>", "</tool_call>", "[", "{", '{"parameters":', '["',
        '["\\"', "[1,", '{"name":"f","parameters":{"a":', "<tool_call>{", '"', "\\", "<", "[x]",
        '{"a":1},[', "<tool_call>{}</tool_call>", '[{"name":"f","parameters":{}},',
    ],
)  # fmt: skip
def test_half_a_megabyte_of_anything_is_read(unit: str) -> None:
    """In quadratic time, some of these would take longer than a test may."""
    text = '"parameters"' + unit * (500_000 // len(unit))
    assert isinstance(parse(text), Parts)
    assert isinstance(parse(f"<tool_call>{text}</tool_call>"), Parts)
