"""The reward of a repair: its published numbers, and a number for anything."""

import json
import re
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from envs.reflection.parse import Parts, parse
from envs.reflection.reward import combine_with_verdict, compute_reward, compute_similarity
from events.algorithm import RepairForm
from tests.envs.reflection.test_parse import tagged

REFLECTION = "The call failed because order_id was null; the customer named order #12."
REFLECT = f"<reflect>\n{REFLECTION}\n</reflect>\n\n"
CALL = tagged("return_order", order_id="#12", items=["lamp", "desk"])
FINAL = "\n<final>It is returned.</final>"
GOLD = REFLECT + CALL
FORMS: tuple[RepairForm, ...] = ("paper", "release")


def reward_text(completion: str, gold: str, form: RepairForm = "paper") -> float:
    return compute_reward(parse(completion), parse(gold), form)


TEXTS = some.text(alphabet="ab \n\t.İß\ud800", max_size=30)


def plain_similarity(a: str, b: str) -> float:
    """Written from the formula, not from the module."""
    if not a or not b:
        return 0.0
    a, b = (re.sub(r"\s+", " ", text.strip().lower()) for text in (a, b))
    if a == b:
        return 1.0
    value = 0.1 * min(len(a), len(b)) / max(len(a), len(b))
    for n, weight in ((1, 0.6), (2, 0.3)):
        grams = []
        for text in (a, b):
            words = text.split(" ")
            runs = {" ".join(words[i : i + n]) for i in range(len(words) - n + 1)}
            grams.append(runs or {text})
        value += weight * len(grams[0] & grams[1]) / (len(grams[0] | grams[1]) + 1e-8)
    return max(0.0, min(1.0, value))


def plain_reward(made: Parts, gold: Parts, form: RepairForm) -> float:
    """Written from the formula, not from the module."""

    def multiset(parts: Parts) -> Counter[tuple[str, str]]:
        return Counter((c.name, json.dumps(c.arguments, sort_keys=True)) for c in parts.calls)

    importance = {"reflection": 0.1, "calls": 0.7, "final": 0.2}
    has = {p: (bool(getattr(made, p)), bool(getattr(gold, p))) for p in importance}
    equal = multiset(made) == multiset(gold)
    if form == "release" and gold.calls and not equal:
        return 0.0
    scores = {
        "reflection": plain_similarity(made.reflection, gold.reflection),
        "calls": float(equal),
        "final": plain_similarity(made.final, gold.final),
    }
    expected = [p for p in importance if has[p][1]]
    weight = sum(importance[p] for p in expected)
    score = sum(importance[p] * scores[p] for p in expected) / weight if expected else 1.0
    missing = sum(importance[p] for p, (mine, its) in has.items() if its and not mine)
    extra = 0.8 * sum(importance[p] for p, (mine, its) in has.items() if mine and not its)
    n, m = len(made.calls), len(gold.calls)
    count = 0.6 * 0.7 * abs(n - m) / max(n, m) if n and m else 0.0
    factor = 1 - 0.8 * (missing + extra + count) * (0.3 if equal else 1.0)
    value = score * max(0.0, min(1.0, factor))
    if value < 1e-6:
        lines = [
            " ".join(
                [
                    parts.reflection,
                    json.dumps([{"name": c.name, "arguments": c.arguments} for c in parts.calls]),
                    parts.final,
                ]
            )
            for parts in (made, gold)
        ]
        value = 0.15 * plain_similarity(*lines)
    return max(0.0, min(1.0, value))


def test_the_similarity_has_its_published_value() -> None:
    found = compute_similarity("the path was null", "the file path was null here")
    assert found == pytest.approx(0.562963, abs=5e-7)
    assert compute_similarity("a b c", "d e f") == pytest.approx(0.1)
    assert compute_similarity("The  PATH\n", "the path") == 1.0
    assert compute_similarity("", "") == 0.0


@given(TEXTS, TEXTS)
def test_the_similarity_is_that_of_the_plain_formula_and_symmetric(a: str, b: str) -> None:
    a, b = a.strip(), b.strip()
    found = compute_similarity(a, b)
    assert found == pytest.approx(plain_similarity(a, b), abs=1e-9)
    assert found == compute_similarity(b, a)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "gold", [GOLD, CALL, REFLECT, FINAL, GOLD + FINAL, CALL + CALL, "", "Nothing to do."]
)
def test_gold_against_itself_is_one(gold: str, form: RepairForm) -> None:
    assert reward_text(gold, gold, form) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_the_calls_without_the_reflection_have_their_published_value(form: RepairForm) -> None:
    assert reward_text(CALL, GOLD, form) == pytest.approx(0.875 * 0.976, abs=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_an_extra_final_answer_at_half_a_similarity_has_its_published_value(
    form: RepairForm,
) -> None:
    # Two of four words, two of four pairs, 7 of 14 characters.
    made, expected = "a b a b", "a b a ccc dddd"
    assert compute_similarity(made, expected) == pytest.approx(0.5, abs=1e-8)
    reward = reward_text(
        f"<reflect>{made}</reflect>{CALL}{FINAL}", f"<reflect>{expected}</reflect>{CALL}", form
    )
    assert reward == pytest.approx(0.9015, abs=1e-8)


def test_the_forms_differ_where_the_calls_are_wrong() -> None:
    wrong = REFLECT + tagged("return_order", order_id=None, items=["lamp", "desk"])
    assert reward_text(wrong, GOLD) == pytest.approx(0.125)
    assert reward_text(wrong, GOLD, "release") == 0.0
    nothing = "I am sorry."
    assert 0 < reward_text(nothing, GOLD) < 0.15
    assert reward_text(nothing, GOLD, "release") == 0.0


def test_a_verdict_counts_whole_and_a_repair_half() -> None:
    assert combine_with_verdict(0.9, 0.0) == 0.45
    assert combine_with_verdict(0.9, 1.0) == 1.0
    assert combine_with_verdict(0.0, 0.0) == 0.0


PIECES = (
    REFLECT, CALL, FINAL, tagged("f", a=1), tagged("f", a={"b": [1, {"c": None}]}), "<reflect>",
    "</reflect>", "<think>", "</think>", "<final>", "</final>", "<tool_call>", "</tool_call>",
    '[{"name": "f", "parameters": {"a": 1}}]', '{"name": "f", "parameters": {}}', "[", "]", "{",
    "}", '"', "\\", "\\ud800", "\ud800", "\x00", "NaN", "1e999", "9" * 700, "[" * 120, '{"a":' * 60,
    " ", "\n", "order_id was null", "İ", "the customer named order #12", '{"name": "f", "argum',
    "<REFLECT>x</REFLECT>", "<think>" + CALL + "</think>", "<reflect>" + CALL + "</reflect>",
)  # fmt: skip


def fuzzed(chance: Random) -> str:
    """A completion: pieces in a row, or gold with a part cut out, doubled or put elsewhere."""
    if chance.random() < 0.5:
        return "".join(chance.choices(PIECES, k=chance.randrange(8)))
    text = GOLD + FINAL * chance.randrange(2)
    start = chance.randrange(len(text))
    end = start + chance.randrange(40)
    return (
        text[:start] + chance.choice(("", text[start:end] * 2, chance.choice(PIECES))) + text[end:]
    )


def test_fuzzed_completions_have_a_reward_by_the_formula() -> None:
    chance = Random(24)
    golds = [parse(text) for text in (GOLD, GOLD + FINAL, CALL, FINAL, "", CALL + CALL)]
    seen: Counter[str] = Counter()
    for number in range(20_000):
        form = FORMS[number % 2]
        made, gold = parse(fuzzed(chance)), golds[number % len(golds)]
        reward = compute_reward(made, gold, form)
        assert 0.0 <= reward <= 1.0
        seen["zero" if reward == 0 else "one" if reward > 1 - 1e-9 else "between"] += 1
        if number % 10 == 0:
            assert abs(reward - plain_reward(made, gold, form)) < 1e-8
    assert min(seen[kind] for kind in ("zero", "one", "between")) > 200, seen


JSON: Any = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@given(some.dictionaries(some.text(), JSON, max_size=4))
def test_any_call_is_rewarded_against_itself(arguments: dict[str, Any]) -> None:
    text = REFLECT + tagged("f", **{f"x{key}": value for key, value in arguments.items()})
    assert reward_text(text, text) == pytest.approx(1.0, abs=1e-6)
