"""Exact tokens or none: what is laid together, what is written, what is refused."""

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from daemon.solver.trajectory import Sampling, Turn, sequences, trainable, untrainable
from tests.daemon.solver.tiny import END, ENDS, conversation, trajectory, turn

FIRST = turn([5, 6], [7, END])
SECOND = turn([5, 6, 7, END, 9, 10], [11, 12, END])


def test_prompts_that_extend_each_other_become_one_sequence() -> None:
    (found,) = sequences(trajectory(FIRST, SECOND))
    assert found.ids == (5, 6, 7, END, 9, 10, 11, 12, END)
    assert found.logprobs == (0, 0, *FIRST.logprobs, 0, 0, *SECOND.logprobs)


def test_what_the_model_did_not_write_is_not_trained_and_its_end_token_is() -> None:
    (found,) = sequences(trajectory(FIRST, SECOND))
    written = [token for token, own in zip(found.ids, found.written, strict=True) if own]
    assert written == [7, END, 11, 12, END]


def test_a_template_that_rewrites_the_past_becomes_one_sequence_per_prompt() -> None:
    """As one that drops earlier reasoning when the user speaks again."""
    forgetful = turn([5, 6, END, 9, 10], [11, 12, END])
    found = sequences(trajectory(FIRST, forgetful))
    assert [part.ids for part in found] == [(5, 6, 7, END), (5, 6, END, 9, 10, 11, 12, END)]
    assert sum(part.tokens for part in found) == 5


def test_only_the_turns_that_break_the_prefix_are_parted() -> None:
    third = turn([8, 8], [3, END])
    fourth = turn([8, 8, 3, END, 2], [4, END])
    found = sequences(trajectory(FIRST, SECOND, third, fourth))
    assert [part.tokens for part in found] == [5, 4]


def test_turns_may_be_parted_on_purpose() -> None:
    found = sequences(trajectory(FIRST, SECOND), unit="turn")
    assert [part.ids for part in found] == [
        FIRST.prompt_ids + FIRST.completion_ids,
        SECOND.prompt_ids + SECOND.completion_ids,
    ]


def test_every_written_token_is_in_exactly_one_sequence_with_its_log_probability() -> None:
    chance = Random("sequences")
    for number in range(50):
        made = conversation(chance, f"r{number}", "g", success=True)
        for unit in ("rollout", "turn"):
            parts = sequences(made, unit)
            written = [
                (token, logprob)
                for part in parts
                for token, own, logprob in zip(part.ids, part.written, part.logprobs, strict=True)
                if own
            ]
            sampled = [
                pair
                for each in made.turns
                for pair in zip(each.completion_ids, each.logprobs, strict=True)
            ]
            assert written == sampled


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"success": None}, "nobody judged"),
        ({"reward": None}, "nobody judged"),
        ({"reward": float("nan")}, "reward is nan"),
        ({"sampling": Sampling(top_p=0.9)}, "plain softmax: .*top_p=0.9"),
        ({"sampling": Sampling(top_k=20)}, "plain softmax"),
        ({"sampling": Sampling(repetition_penalty=1.1)}, "plain softmax"),
        ({"sampling": Sampling(temperature=0.7)}, "temperature 0.7, not 1"),
    ],
)
def test_a_rollout_that_cannot_be_trained_on_is_refused_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    (refused,) = trainable([trajectory(FIRST, **changes)], ENDS)[1]
    assert refused.rollout == "r"
    assert re.search(reason, refused.reason)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (replace(SECOND, logprobs=()), "turn 1: 3 token ids and 0 log-probabilities"),
        (replace(SECOND, logprobs=(-0.1, -0.2)), "3 token ids and 2 log-probabilities"),
        (turn([5], []), "no token ids"),
        (turn([], [3, END]), "no prompt"),
        (turn([5], [-1, END]), "negative token id"),
        (replace(SECOND, logprobs=(-0.1, float("-inf"), -0.2)), "log-probability of -inf"),
        (replace(SECOND, logprobs=(-0.1, float("nan"), -0.2)), "log-probability of nan"),
        (replace(SECOND, logprobs=(-0.1, 0.7, -0.2)), "log-probability of 0.7"),
        (replace(SECOND, logprobs=(-0.1, 1e300, -0.2)), "log-probability of 1e+300"),
        (replace(SECOND, logprobs=(-0.1, -1e300, -0.2)), "log-probability of -1e+300"),
        (turn([5], [2**31, END]), "more than 31 bits"),
        (turn([5], [3, 4]), "its last token, 4, does not end a turn"),
    ],
)
def test_missing_and_unequal_arrays_are_refused_and_never_padded(broken: Turn, reason: str) -> None:
    found = untrainable(trajectory(FIRST, broken), ENDS)
    assert found is not None
    assert reason in found


def test_a_rollout_without_turns_is_refused() -> None:
    assert untrainable(trajectory(), ENDS) == "it has no turns"


def test_a_cut_off_rollout_is_no_success_and_does_not_go_on() -> None:
    cut = turn([5], [3, 4], truncated=True)
    assert untrainable(trajectory(cut, success=False, reward=0.0), ENDS) is None
    assert untrainable(trajectory(cut), ENDS) == "it was cut off and yet counts as a success"
    gone_on = untrainable(trajectory(cut, SECOND), ENDS)
    assert gone_on == "turn 0: cut off, and yet the conversation went on"


def test_what_is_whole_is_kept() -> None:
    kept, refused = trainable([trajectory(FIRST, SECOND)], ENDS)
    assert len(kept) == 1
    assert not refused
