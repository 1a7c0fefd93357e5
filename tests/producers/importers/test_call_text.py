"""Calls in text of any notation are read; broken ones are malformed, prose is prose."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.importers.call_text import MAX_CHARACTERS, parse_call, parse_calls


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("cd(folder='a b')", "cd", {"folder": "a b"}),
        ("Files.cd(x=[1, {'k': None}], y=-2)", "Files.cd", {"x": [1, {"k": None}], "y": -2}),
        ("f(x=(1, 2))", "f", {"x": [1, 2]}),
        ("f(x=open('secret'))", "f", "x=open('secret')"),
        ("f(x={1, 2})", "f", "x={1, 2}"),
        ("f(**x)", "f", "**x"),
        ("ls<|channel|>commentary(a=False)", "ls<|channel|>commentary", "(a=False)"),
        ("", "", ""),
        ("(" * 5_000, "", "(" * 5_000),
        ("f('\\d')", "f", {"0": "\\d"}),
        ("f(a=1e999)", "f", '{"a": Infinity}'),
        ("f(a=1, a=2)", "f", "a=1, a=2"),
    ],
)
def test_calls_are_parsed_and_never_run(text: str, name: str, arguments: Any) -> None:
    call = parse_call(text)
    assert (call.name, call.arguments) == (name, arguments)


CALLS: dict[str, list[tuple[str, Any]]] = {
    "[f(), g(a=1)]": [("f", {}), ("g", {"a": 1})],
    "f(a=1), g()": [("f", {"a": 1}), ("g", {})],
    "f(a=1)\ng()": [("f", {"a": 1}), ("g", {})],
    "`[f(a=1)]`": [("f", {"a": 1})],
    "[\n    f(a='it\\'s, [', b=[1, 2]),\n    g()\n]": [
        ("f", {"a": "it's, [", "b": [1, 2]}),
        ("g", {}),
    ],
    '[{"name": "f", "arguments": {"a": 1}}]': [("f", {"a": 1})],
    '[\n  {"name": "f", "arguments": {"a": 1}}\n]': [("f", {"a": 1})],
    '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}': [
        ("f", {"a": 1}),
        ("g", {}),
    ],
    '[{"function": "f", "parameters": {"a": 1}}]': [("f", {"a": 1})],
    '{"type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}': [
        ("f", {"a": 1})
    ],
    '{"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}': [("f", {})],
    '{"f": {"a": 1}}': [("f", {"a": 1})],
    '[{"f": "{\\"a\\": 1}"}, {"g": {}}]': [("f", {"a": 1}), ("g", {})],
    "{'name': 'f', 'arguments': {'a': True}}": [("f", {"a": True})],
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n'
    '{"name": "g", "arguments": {"a": 1}}\n</tool_call>': [("f", {}), ("g", {"a": 1})],
    'I look. <tool_call>{"name": "f", "arguments": {}}': [("f", {})],
    "<TOOLCALL>[f(a=1)]</TOOLCALL>": [("f", {"a": 1})],
    '<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>': [("f", {})],
    '<|python_tag|>{"name": "f", "parameters": {}}': [("f", {})],
    '<tool_call>```json\n{"name": "f", "arguments": {}}\n```</tool_call>': [("f", {})],
    '```json\n[{"name": "f", "arguments": {"a": 1}}]\n```': [("f", {"a": 1})],
    "Here:\n```python\n[f(a=1)]\n```\nDone.": [("f", {"a": 1})],
    "```\nf(a=1)": [("f", {"a": 1})],
    "```tool_code\nf(a=1)\n```": [("f", {"a": 1})],
    "Sure!\n\n[f(a=1)]\n\nThis computes it.": [("f", {"a": 1})],
    "Here is the call: [f(a=1)]": [("f", {"a": 1})],
    "<think>\nmaybe h()\n</think>\n\n[f(a=1)]": [("f", {"a": 1})],
    '<functions><function name="f"><param name="a" type="integer">1</param></function>'
    "</functions>": [("f", {"a": 1})],
    '<TOOLCALL><functions><function name="f"><params><param name="a" value="True" '
    'type="boolean"/><param name="b" value="x"/></params></function></functions></TOOLCALL>': [
        ("f", {"a": True, "b": "x"})
    ],
    '<function=f>{"a": 1}</function>': [("f", {"a": 1})],
    "I look.\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>x y</parameter>\n"
    "</function>": [("f", {"a": 1, "b": "x y"})],
    "<tool_call>\n<function=f>\n</function>\n<function=g>\n<parameter=a>[1]</parameter>\n"
    "</function>\n</tool_call>": [("f", {}), ("g", {"a": [1]})],
    '<tool_call>{"name": "f", "arguments": {"a": "<function=g>"}}</tool_call>': [
        ("f", {"a": "<function=g>"})
    ],
    '[TOOL_CALLS]f{"a": 1}': [("f", {"a": 1})],
    '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}</s>': [("f", {"a": 1}), ("g", {})],
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": '
    "1}<|tool_call_end|><|tool_calls_section_end|>": [("f", {"a": 1})],
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    '{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>': [("f", {"a": 1})],
    "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
    "<arg_value>x</arg_value>\n</tool_call>": [("f", {"a": 1, "b": "x"})],
    '<function_calls>\n<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>\n'
    "</function_calls>": [("f", {"a": "x"})],
    'functools[{"name": "f", "arguments": {}}]': [("f", {})],
    '{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}': [("f", {"a": 1})],
    '<|python_tag|>f.call(a="x")<|eot_id|>': [("f.call", {"a": "x"})],
    "[f(a=1)]<|im_end|></s>": [("f", {"a": 1})],
    "```python\n# First\n\nf(a=1)  # of all\ng()\n```": [("f", {"a": 1}), ("g", {})],
}

BROKEN: dict[str, tuple[str, Any]] = {
    "[f(a=1": ("f", "(a=1"),
    "[f(a=)]": ("f", "(a=)"),
    "[f(a=1, b=c)]": ("f", "a=1, b=c"),
    "f(a='x": ("f", "(a='x"),
    "Sure:\n[f(a=1": ("f", "(a=1"),
    '{"name": "f", "arguments": {"a": 1': ("f", '{"name": "f", "arguments": {"a": 1'),
    '[{"name": "f", "arguments": {"a": }}]': ("f", '[{"name": "f", "arguments": {"a": }}]'),
    '{"name": "f", "arguments": {"a": NaN}}': ("f", '{"name": "f", "arguments": {"a": NaN}}'),
    '{"arguments": {"a": 1}}': ("", '{"arguments":{"a":1}}'),
    '{"name": "f", "arguments": "a = 1"}': ("f", "a = 1"),
    '[{"f": {"a": 1': ("", '[{"f": {"a": 1'),
    '<tool_call>{"name": "f", "argu': ("f", '{"name": "f", "argu'),
    "<tool_call></tool_call>": ("", ""),
    '<function=f>{"a": ': ("f", '{"a":'),
    "<function=f": ("", "f"),
    "<function=f><parameter=a>1": ("f", "<parameter=a>1"),
    "<tool_call>f<arg_key>a</arg_key><arg_value>1": ("f", "<arg_key>a</arg_key>1"),
    '[TOOL_CALLS]f[ARGS]{"a": ': ("f", '{"a":'),
    "<tool_call>I do not know</tool_call>": ("I", "do not know"),
    "<TOOLCALL><functions><function></functions></TOOLCALL>": (
        "",
        "<functions><function></functions>",
    ),
    '```json\n{"name": "f", "arguments": {]}\n```': ("f", '{"name": "f", "arguments": {]}'),
}

PROSE = (
    "", "[]", "{}", "f", "x" * 10, "I am done.", "[1, f()]", "[1, 2]", '["a"]', "null",
    "I cannot (yet) do it.", "f(x) = x + 1 is not defined.", "Note(s): none", "[see](http://x)",
    "The function f(a=1) needs b.", "{'answer': 'Paris', 'context': 'It is: so'}",
    '{"answer": "x"}', "<think> I could call f(", "```python\nimport math\nprint(1)\n```",
    "[f(a=1)] would be the call.", "<3", "a < b", "1. f\n2. g",
)  # fmt: skip


@pytest.mark.parametrize("text", CALLS)
def test_calls_in_any_notation_are_calls(text: str) -> None:
    assert [(call.name, call.arguments) for call in parse_calls(text)] == CALLS[text]


@pytest.mark.parametrize("text", BROKEN)
def test_what_looks_like_a_call_and_is_none_is_malformed(text: str) -> None:
    (call,) = parse_calls(text)
    assert (call.name, call.arguments) == BROKEN[text]


@pytest.mark.parametrize("text", PROSE)
def test_prose_holds_no_call(text: str) -> None:
    assert parse_calls(text) == []


def test_the_whole_calls_beside_a_broken_one_stay() -> None:
    texts = ("[f(a=1), g(b=)]", '{"name": "f", "arguments": {"a": 1}} {"name": "g", "argume')
    for text in texts:
        first, second = parse_calls(text)
        assert (first.name, first.arguments) == ("f", {"a": 1})
        assert (second.name, type(second.arguments)) == ("g", str)


PIECES = [
    "f(", "a=", "[", "]", "{", "}", ")", "(", '"', "'", ",", ";", ":", "\n", " ", "\\", "1", "```",
    "json", '"name"', '"arguments"', "f", "<tool_call>", "</tool_call>", "<functions>", "<param ",
    "</think>", "<TOOLCALL>", '{"f": {', "<function=", "<parameter=a>", "[TOOL_CALLS]", "[ARGS]",
    "#", "<arg_key>", "<|im_end|>", "-", "*", "not ", ".x", "[0]", "\ud800", "é", ": ",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join), st.booleans())
def test_any_text_is_read_without_an_error(text: str, literal: bool) -> None:
    for call in parse_calls(text, literal=literal):
        json.dumps(call.model_dump())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["f", "api.get", "Go_2"]),
            st.dictionaries(st.text("abcd", min_size=1, max_size=4), VALUES, max_size=3),
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_every_notation_gives_back_the_calls_that_were_written(calls: list[Any]) -> None:
    python = ", ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    objects = [json.dumps({"name": name, "arguments": values}) for name, values in calls]
    listed = f"[{', '.join(objects)}]"
    for text in (
        f"[{python}]", python, listed, "\n".join(objects), f"```json\n{listed}\n```",
        "".join(f"<tool_call>\n{item}\n</tool_call>" for item in objects),
        f"<TOOLCALL>{listed}</TOOLCALL>", f"I see.\n{listed}",
    ):  # fmt: skip
        if "```" in python or "<tool" in python or "<TOOL" in python:
            continue
        assert [(call.name, call.arguments) for call in parse_calls(text)] == calls


LONG = (
    "f(", "[", "(", "{", "<tool_call>", "```", "f(a=1)\n", "[f(\n", '{"a": ', "[{", "-", ": [",
    "a.", "f(x) = 1\n", "<functions>", "<function=f>", "<parameter=a>", "|>", "#\n", "<arg_key>a",
    "[TOOL_CALLS]f{", "not ", '[{"name": ', "'", '{"f": {}},', "null,", "f'{a}'",
)  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", LONG)
def test_a_long_text_is_read(piece: str) -> None:
    for start in ("", "[", "[f(a="):
        parse_calls(start + piece * (60_000 // len(piece)))


def test_what_is_too_long_for_the_parser_is_malformed() -> None:
    (call,) = parse_calls(f"[f(a='{'x' * MAX_CHARACTERS}')]")
    assert (call.name, type(call.arguments)) == ("f", str)
