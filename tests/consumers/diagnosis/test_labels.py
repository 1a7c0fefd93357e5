"""What a rollout costs to be labelled, whoever wrote it: linear, and bounded where it is said."""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import pytest

from consumers.diagnosis import facts, labels, matching, rules
from consumers.diagnosis.labels import label_rollout
from consumers.diagnosis.response_patterns import (
    READ_CHARACTERS,
    asks,
    hands_over,
    overflows,
    refuses,
)
from events.canonical import MARKS, canonical, exact_json
from events.messages import Action, Message, ToolCall
from events.rollouts import RolloutContent, RolloutEnded, Task

T = TypeVar("T")

LINEAR: Final = 9.0
"""Four times as much takes less than this many times as long; a square would be sixteen."""


def rollout(messages: Sequence[Message], **fields: object) -> RolloutEnded:
    return RolloutEnded.model_validate(
        {
            "rollout": "r", "alias": "a", "base": "b", "policy": "p", "source": "test",
            "success": False, "content": RolloutContent(messages=tuple(messages)), **fields,
        }
    )  # fmt: skip


def asked(*calls: ToolCall) -> Message:
    return Message(role="assistant", tool_calls=calls)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def failed(text: str = "no") -> Message:
    return Message(role="tool", content=text, error=True)


def answered() -> Message:
    return Message(role="tool", content="ok")


def task(*gold: Action, outputs: Sequence[str] = ()) -> Task:
    return Task(id="t", gold_actions=gold, outputs=tuple(outputs))


def different_calls(n: int) -> RolloutEnded:
    return rollout([asked(*(ToolCall(name="get", arguments={"id": k}) for k in range(n)))])


def numbers_with_one_hash(n: int) -> RolloutEnded:
    """Python hashes whole numbers modulo 2^61 - 1."""
    calls = (ToolCall(name="get", arguments={"id": k * (2**61 - 1)}) for k in range(n))
    return rollout([asked(*calls)])


def made_up_tools(n: int) -> RolloutEnded:
    known = tuple(f"known {k}" for k in range(n))
    return rollout([asked(*(ToolCall(name=f"x{k}") for k in range(n)))], known_tools=known)


def writes_and_gold(n: int) -> RolloutEnded:
    gold = (Action(name="set_x", arguments={"id": f"g{k}"}) for k in range(n))
    turns = [
        message
        for k in range(n)
        for message in (
            asked(ToolCall(name="set_x", arguments={"id": f"x{k}"})),
            failed() if k % 2 else answered(),
        )
    ]
    return rollout(turns, task=task(*gold))


def taken_back(n: int) -> RolloutEnded:
    gold = (Action(name="set_x", arguments={"id": f"g{k}"}) for k in range(n))
    calls = (ToolCall(name="set_x", arguments={"id": f"x{k}"}) for k in range(n))
    turns = [message for call in calls for message in (asked(call), failed())]
    return rollout([said("I can not change that."), *turns], task=task(*gold))


def outputs(n: int) -> RolloutEnded:
    wanted = [f"unsaid {k}" for k in range(n)]
    return rollout([said("x" * 20 * n)], task=task(outputs=wanted), reward_parts={"DB": 1.0})


def long_tool_name(n: int) -> RolloutEnded:
    return rollout([asked(ToolCall(name="x" * 8 * n))])


def combining_marks(n: int) -> RolloutEnded:
    return rollout([asked(ToolCall(name="get", arguments={"a": "e" + "\u0301\u0316" * n}))])


@pytest.mark.parametrize(
    "make",
    [different_calls, numbers_with_one_hash, made_up_tools, writes_and_gold, taken_back, outputs,
     long_tool_name, combining_marks],
    ids=lambda make: make.__name__,
)  # fmt: skip
def test_labels_take_time_linear_in_what_was_called(make: Callable[[int], RolloutEnded]) -> None:
    assert growth(label_rollout, make(500), make(2_000)) < LINEAR


@pytest.mark.parametrize("judge", [refuses, asks, hands_over, overflows])
@pytest.mark.parametrize(
    "words",
    ["exceed", "exceedx ", "a.", "i ", "i can not ", "not be xly ", "please let me know if ",
     "i'll now transfer ", "1.", "- if ", "prompt is too ", "\u0301\u0316"],
)  # fmt: skip
def test_sentences_are_read_in_time_linear_in_their_length(
    judge: Callable[[str], bool], words: str
) -> None:
    few, many = (f"not transfer {words * (n // len(words))}?" for n in (5_000, 20_000))
    assert growth(judge, few, many) < LINEAR


def growth(work: Callable[[T], object], little: T, much: T) -> float:
    """How many times as long the second takes: the best of several, of this thread alone."""
    work(little)
    quickest = [min(_seconds(work, what) for _ in range(3)) for what in (little, much)]
    return quickest[1] / max(quickest[0], 1e-4)


def _seconds(work: Callable[[T], object], what: T) -> float:
    began = time.thread_time()
    work(what)
    return time.thread_time() - began


@pytest.mark.parametrize(
    ("text", "overflowing"),
    [
        ("this exceeds the limit of tokens", True),
        ("it unexceeded 5 tokens", True),
        ("exceed" * 3 + " 9 Tokens", True),
        ("exceed, tokens", False),
        ("exceed\ntokens", False),
        ("exceeds " + "x" * 40 + " tokens", False),
        ("exceeds " + "x" * 39 + " tokens", True),
        ("exceeds " + "x" * 50 + " exceeded tokens", True),
        ("exceeds the tokenset", False),
    ],
)
def test_what_exceeds_tokens(text: str, overflowing: bool) -> None:
    assert overflows(text) == overflowing


def test_of_a_text_beyond_the_bound_its_begin_and_end_are_read() -> None:
    filler = "x " * READ_CHARACTERS
    assert asks(f"{filler} Shall I proceed?")
    assert refuses(f"I can not change that. {filler}")
    assert not refuses(f"{filler} I can not change that. {filler}")


def test_marks_beyond_the_bound_are_taken_as_they_are() -> None:
    some, many = ("e" + "\u0301\u0316" * (n // 2) for n in (MARKS, MARKS + 2))
    assert canonical(some) != some
    assert canonical(many) == many
    assert canonical(f"{many} e\u0301") != canonical(f"{many} \xe9")


def test_evidence_names_the_first_and_says_how_many_it_leaves_out() -> None:
    turns = [
        message
        for k in range(2 * labels.FINDINGS)
        for message in (asked(ToolCall(name=f"made up {k}")), failed())
    ]
    evidence = label_rollout(rollout(turns, known_tools=("real",))).evidence
    assert evidence is not None
    findings = evidence["incorrect_arguments"]
    assert len(findings) == labels.FINDINGS + 1
    # Each call is one of a tool that is unknown, and of one that only failed.
    assert findings[-1] == {"left_out": 3 * labels.FINDINGS}
    assert findings[0]["turn"] == 0


def test_evidence_is_no_longer_than_its_bound_whatever_it_quotes() -> None:
    huge = {"text": "x" * labels.EVIDENCE_CHARACTERS}
    turns = [asked(ToolCall(name="get", arguments=huge))] * 4
    evidence = label_rollout(rollout(turns)).evidence
    assert evidence is not None
    assert evidence["tool_loop"] == [{"left_out": 2}]
    assert len(exact_json(evidence)) < 2 * labels.EVIDENCE_CHARACTERS


def test_a_loop_of_a_thousand_turns_names_the_first_ones() -> None:
    turns = [asked(ToolCall(name="get"))] * (5 * rules.NAMED)
    evidence = label_rollout(rollout(turns)).evidence
    assert evidence is not None
    row, whole = evidence["tool_loop"]
    assert row["turns"] == whole["turns"] == list(range(rules.NAMED))


def test_writes_beyond_the_bound_are_paired_with_nothing() -> None:
    gold = [Action(name="set_x", arguments={"id": str(k)}) for k in range(2 * matching.WRITES)]
    turns = [
        message
        for action in gold
        for message in (asked(ToolCall(name="set_x", arguments=action.arguments)), answered())
    ]
    found = facts.Facts(rollout(turns, task=task(*gold)), None).write_match
    assert found is not None
    assert found.exact
