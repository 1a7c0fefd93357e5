"""The official rule of Tool-Reflection-Bench with its defects, and the rule without them."""

import json
from pathlib import Path
from typing import Any

import pytest

from envs.reflection.mended import is_repaired
from envs.reflection.official import (
    Dialect,
    OfficialScore,
    remove_thinking,
    score_officially,
)
from tests.envs.reflection.test_parse import tagged

F = tagged("f", a=1)
G = tagged("g", b="x")
LLAMA = '[{"name": "f", "parameters": {"a": 1}}]'
QUOTED = '<reflect>It was {"name": "f", "arguments": {"a": null}}.</reflect>\n\n'


def verdicts(completion: str, gold: str, dialect: Dialect = "qwen") -> tuple[bool, bool]:
    """The official one, and the mended one."""
    return (
        score_officially(completion, gold, dialect).correct,
        is_repaired(completion, gold, dialect),
    )


@pytest.mark.parametrize(
    ("completion", "gold", "dialect"),
    [
        (F, F, "qwen"),
        (G + F, F + G, "qwen"),
        ("<think>\n" + G + "</think>" + F, "<reflect>why</reflect>" + F, "qwen"),
        ("No call is needed.", "None.", "qwen"),
        (LLAMA, f"<reflect>why</reflect>{LLAMA}", "llama"),
        (f"Now: {LLAMA}", LLAMA, "llama"),
        (f"<tool_call>{LLAMA}</tool_call>", LLAMA, "llama"),
    ],
)
def test_both_rules_accept_what_is_right(completion: str, gold: str, dialect: Dialect) -> None:
    assert verdicts(completion, gold, dialect) == (True, True)


@pytest.mark.parametrize(
    ("completion", "gold", "dialect"),
    [
        ("", F, "qwen"),
        (F, "None.", "qwen"),
        (F + F, F, "qwen"),
        (tagged("f", a=2), F, "qwen"),
        (tagged("f", a="1"), F, "qwen"),
        (F + '\n{"name": "f", "arguments": {}}', F, "qwen"),
        (F + "<tool_call>{", F, "qwen"),
        (F + "<tool_call>{}</tool_call>", F, "qwen"),
        (F + "<tool_call>{]}</tool_call>", F, "qwen"),
        (LLAMA, F, "qwen"),
        (F, LLAMA, "llama"),
        (LLAMA + '[{"name": "f", "parameters": {,}}]', LLAMA, "llama"),
    ],
)
def test_both_rules_refuse_what_is_wrong(completion: str, gold: str, dialect: Dialect) -> None:
    assert verdicts(completion, gold, dialect) == (False, False)


@pytest.mark.parametrize(
    ("completion", "gold", "dialect"),
    [
        pytest.param(tagged("f", a=[1]), tagged("f", a=[1]), "qwen", id="1 a list"),
        pytest.param(tagged("f", a={}), tagged("f", a={}), "qwen", id="1 an object"),
        pytest.param(QUOTED + F, QUOTED + F, "qwen", id="2 a quoted call"),
        pytest.param(tagged("f", a={"b": 1}), tagged("f", a={"b": 1}), "qwen", id="3 at the end"),
        pytest.param(LLAMA + "[1]", LLAMA, "llama", id="4 another list"),
        pytest.param("See [1].", "None.", "qwen", id="5 brackets in what calls nothing"),
    ],
)
def test_the_official_rule_refuses_what_is_right(
    completion: str, gold: str, dialect: Dialect
) -> None:
    assert verdicts(completion, gold, dialect) == (False, True)


def test_the_official_rule_takes_equal_calls_for_one() -> None:
    assert verdicts(F + F + G, F + G + G) == (True, False)
    assert verdicts(F + G, F + G + G) == (False, False)


def test_the_official_rule_compares_values_as_python_does() -> None:
    """The mended one compares JSON: 1, 1.0 and true are three values."""
    assert verdicts(tagged("f", a=1.0), F) == (True, False)
    assert verdicts(tagged("f", a=True), F) == (True, False)


def test_the_overlap_is_the_share_of_golds_calls() -> None:
    assert score_officially(F, F + G, "qwen") == OfficialScore(False, 0.5)
    assert score_officially(F + G, F, "qwen") == OfficialScore(False, 1.0)
    assert score_officially(F + F, F, "qwen") == OfficialScore(False, 1.0)
    assert score_officially("no", "no", "qwen") == OfficialScore(True, 1.0)


def test_thinking_and_empty_lines_are_removed() -> None:
    assert remove_thinking("<Think>a\n</think>\n\n \n b <think>c") == "b <think>c"
    assert remove_thinking("<think>a</think> ").startswith("ERROR")
    assert remove_thinking("") == ""


@pytest.mark.parametrize("dialect", ["qwen", "llama"])
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 20_000,
        "<tool_call>{" * 20_000,
        '{"name":"f","arguments":{' * 20_000,
        '{"name":"f","arguments":{' * 20_000 + "}",
        "}   " * 50_000 + "</tool_call>",
        "[x" * 2_000 + "]" * 2_000,
        "[" * 100_000 + "]" * 100_000,
        "[" + "9" * 10_000 + "]",
        '<tool_call>{"name": "f", "arguments": ' + "9" * 10_000 + "}</tool_call>",
        "\ud800[]\x00",
    ],
    ids=lambda text: text[:30],
)
def test_hostile_texts_have_a_verdict(text: str, dialect: Dialect) -> None:
    assert verdicts(text, F if dialect == "qwen" else LLAMA, dialect) == (False, False)
    assert {type(verdict) for verdict in verdicts(text, text, dialect)} == {bool}


@pytest.mark.benchmarks
def test_gold_of_the_benchmark_itself(benchmarks: Path) -> None:
    """The first item's reflection quotes a call: official gold does not pass its own rule."""
    path = benchmarks / "tool_reflection_bench" / "sample_2_items.jsonl"
    items: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    golds = [item["ground_truth"] for item in items]
    assert [verdicts(gold, gold) for gold in golds] == [(False, True), (True, True)]


def test_white_space_behind_many_bare_calls_is_read_once() -> None:
    text = '{"name": "f", "arguments": {' * 20_000 + "}" + " " * 400_000
    assert verdicts(text, F) == (False, False)
