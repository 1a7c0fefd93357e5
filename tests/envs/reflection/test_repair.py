"""What a first message is worth by a lesson: gold, calls, text, and anything at all."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from envs.reflection.parse import ParsedCall, Parts
from envs.reflection.repair import ImpossibleLesson, Repair, assess_repair, build_gold, read_answer
from envs.reflection.reward import compute_reward
from envs.task import Lesson
from events.messages import Action, ToolCall
from tests.envs.reflection.test_parse import tagged

REFLECTION = "The call failed because order_id was null; the customer named order #12."
REFLECT = f"<reflect>\n{REFLECTION}\n</reflect>\n\n"
RIGHT = ("return_order", {"order_id": "#12", "items": ["lamp", "desk"]})
CALL = tagged("return_order", order_id="#12", items=["lamp", "desk"])
SPEECH = "It is returned."


def lesson(*calls: tuple[str, dict[str, Any]], final: str = "") -> Lesson:
    expected = tuple(Action(name=name, arguments=arguments) for name, arguments in calls)
    return Lesson(
        operator="argument",
        reflection=REFLECTION,
        calls=expected,
        final=final,
        source="shop/return/1",
    )


def made(*calls: tuple[str, Any]) -> list[ToolCall]:
    return [ToolCall(name=name, arguments=arguments) for name, arguments in calls]


def test_gold_is_what_the_lesson_expects() -> None:
    canonical = '{"items":["lamp","desk"],"order_id":"#12"}'
    assert build_gold(lesson(RIGHT)) == Parts(
        REFLECTION, (ParsedCall("return_order", RIGHT[1], canonical),), "", tagged=1
    )
    assert build_gold(lesson(final=f" {SPEECH}\n")) == Parts(REFLECTION, (), SPEECH)
    both = build_gold(lesson(RIGHT, ("get_order", {"n": 1.0, "ü": None}), final=SPEECH))
    assert [call.canonical for call in both.calls] == [canonical, '{"n":1.0,"ü":null}']
    assert both.final == SPEECH


def nest(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), 10**700, 10**5000, nest(120)],
    ids=["no number", "infinite", "long", "longer", "deep"],
)
def test_a_call_that_nobody_can_make_is_no_lesson(value: Any) -> None:
    with pytest.raises(
        ImpossibleLesson, match=r"a call of buy whose arguments no call can have.*correct"
    ):
        build_gold(lesson(RIGHT, ("buy", {"n": value})))


@pytest.mark.parametrize("form", ["paper", "release"])
@pytest.mark.parametrize(
    ("text", "calls", "expected", "reward", "success"),
    [
        (REFLECT + CALL, [RIGHT], lesson(RIGHT), 1.0, True),
        (CALL, [RIGHT], lesson(RIGHT), 0.854, True),
        (REFLECT + CALL + SPEECH, [RIGHT], lesson(RIGHT), 1 - 0.8 * 0.16 * 0.3, True),
        (REFLECT + CALL + SPEECH, [RIGHT], lesson(RIGHT, final=SPEECH), 1.0, True),
        (REFLECT + CALL, [RIGHT], lesson(RIGHT, final=SPEECH), 0.8 * (1 - 0.8 * 0.2 * 0.3), True),
        (REFLECT + SPEECH, [], lesson(final=SPEECH), 1.0, True),
        (f"{REFLECT}<final>{SPEECH}</final>", [], lesson(final=SPEECH), 1.0, True),
        (SPEECH, [], lesson(final=SPEECH), (2 / 3) * (1 - 0.8 * 0.1 * 0.3), True),
        (REFLECT + CALL + CALL, [RIGHT, RIGHT], lesson(RIGHT, RIGHT), 1.0, True),
    ],
)  # fmt: skip
def test_right_messages_have_their_value_in_both_forms(
    form: Any, text: str, calls: list[Any], expected: Lesson, reward: float, success: bool
) -> None:
    repair = assess_repair(text, made(*calls), build_gold(expected), form)
    assert repair.reward == pytest.approx(reward, abs=1e-6)
    assert repair.success is success


OTHER = ("return_order", {"order_id": None, "items": ["lamp", "desk"]})


@pytest.mark.parametrize(
    ("text", "calls", "paper", "release"),
    [
        (REFLECT + tagged(OTHER[0], **OTHER[1]), [OTHER], 0.125, 0.0),
        (REFLECT + CALL + CALL, [RIGHT, RIGHT], 0.125 * (1 - 0.8 * 0.21), 0.0),
        # The calls are missing, and an answer is given that nobody expects.
        (REFLECT + SPEECH, [], 0.125 * (1 - 0.8 * (0.7 + 0.16)), 0.0),
        # The tools were given nothing: one call of two could not be read.
        (REFLECT + CALL + "<tool_call>{</tool_call>", [], 0.125 * (1 - 0.8 * 0.7), 0.0),
        # In Llama's form, which the engine that played it does not read.
        (
            REFLECT + json.dumps({"name": RIGHT[0], "parameters": RIGHT[1]}),
            [],
            0.125 * (1 - 0.8 * 0.7),
            0.0,
        ),
    ],
)
def test_wrong_messages_are_no_success_and_the_forms_differ(
    text: str, calls: list[Any], paper: float, release: float
) -> None:
    gold = build_gold(lesson(RIGHT))
    repair = assess_repair(text, made(*calls), gold)
    assert repair.reward == pytest.approx(paper)
    assert not repair.success
    assert assess_repair(text, made(*calls), gold, "release") == Repair(release, False)


def test_where_text_is_expected_a_call_or_silence_is_no_success() -> None:
    gold = build_gold(lesson(final=SPEECH))
    assert assess_repair("Sorry?", [], gold).success
    assert not assess_repair("", [], gold).success
    assert not assess_repair(REFLECT, [], gold).success, "nobody reads a reflection"
    assert not assess_repair(f"{SPEECH}{CALL}", made(RIGHT), gold).success


def test_a_call_that_a_reflection_quotes_is_none() -> None:
    text = f"<reflect>I called {CALL}</reflect>{SPEECH}"
    answer = read_answer(text)
    assert (answer.calls, answer.final) == ((), SPEECH)


def test_reasoning_that_the_prompt_has_opened_is_no_answer() -> None:
    assert read_answer(f"Hm, {CALL}\n</think>\n\n{SPEECH}").final == SPEECH
    assert read_answer(f"<think>Hm.</think>{SPEECH}").final == SPEECH


@pytest.mark.parametrize(
    "arguments",
    ["no json", {"n": float("nan")}, {"n": 10**5000}, {"n": nest(5000)}],
    ids=["text", "no number", "long", "deep"],
)
def test_arguments_that_no_call_can_have_equal_none(arguments: Any) -> None:
    call = ToolCall.model_construct(name="return_order", arguments=arguments)
    repair = assess_repair(REFLECT, [call], build_gold(lesson(RIGHT)))
    assert repair.reward == pytest.approx(0.125)
    assert not repair.success


PIECES = some.sampled_from(
    ["<reflect>", "</reflect>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<final>",
     "</final>", CALL, '{"name": "a", "parameters": {}}', "{", "[", '"', "a b", "\ud800", "ß"]
)  # fmt: skip


@given(some.lists(PIECES | some.text(max_size=9), max_size=12), some.booleans(), some.booleans())
def test_any_text_has_a_number(pieces: list[str], called: bool, speaks: bool) -> None:
    text, calls = "".join(pieces), made(RIGHT) if called else []
    gold = build_gold(lesson(final=SPEECH) if speaks else lesson(RIGHT))
    repair = assess_repair(text, calls, gold)
    assert 0 <= repair.reward <= 1
    assert repair.reward == compute_reward(read_answer(text, calls), gold)
    if called and not speaks:
        assert repair.success
        assert repair.reward > 0.8
    if called and speaks:
        assert not repair.success
