"""Sampling: every task is seen before any is seen twice, and chance is the seed's alone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from daemon.controller.sampling import (
    Candidate,
    sample_failures,
    sample_successes,
    shorten,
)
from events.messages import Message, ToolCall

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        rollout=st.uuids().map(str),
        task=st.sampled_from("abcde"),
        reward=st.sampled_from([None, -0.5, 0.0, 0.2]),
    ),
    unique_by=lambda one: one.rollout,
    max_size=40,
)


@given(CANDIDATES, st.integers(0, 30), st.randoms())
def test_a_sample_hangs_on_the_seed_and_not_on_the_order(
    candidates: list[Candidate], most: int, chance: object
) -> None:
    first = sample_failures(candidates, "seed", most)
    mixed = list(candidates)
    chance.shuffle(mixed)  # type: ignore[attr-defined]
    assert sample_failures(mixed, "seed", most) == first
    assert len(first) == len(set(first)) == min(most, len(candidates))


@given(CANDIDATES, st.integers(0, 30))
def test_no_task_is_seen_twice_more_often_than_another_that_has_more(
    candidates: list[Candidate], most: int
) -> None:
    available = Counter(one.task for one in candidates)
    seen = Counter(one.task for one in sample_failures(candidates, "seed", most))
    highest = max(seen.values(), default=0)
    assert all(seen[task] >= min(available[task], highest - 1) for task in available)


def test_within_a_task_every_reward_is_seen_before_any_twice() -> None:
    candidates = [Candidate(f"r{n}", "t", 0.0 if n else -0.5) for n in range(10)]
    for seed in "abcdef":
        sample = sample_failures(candidates, seed, 2)
        assert {one.reward for one in sample} == {0.0, -0.5}


def test_another_seed_is_another_sample() -> None:
    candidates = [Candidate(f"r{n}", f"t{n}") for n in range(50)]
    samples = {tuple(sample_failures(candidates, seed, 10)) for seed in "abcdef"}
    assert len(samples) == 6


def test_successes_show_the_contrast_first() -> None:
    candidates = [Candidate(f"{task}{n}", task) for task in "abc" for n in range(3)]
    tasks = [one.task for one in sample_successes(candidates, {"c"}, {"b"}, "seed", 8)]
    assert tasks == ["c"] * 3 + ["b"] * 3 + ["a"] * 2


def test_a_long_conversation_keeps_its_ends() -> None:
    messages = [Message(role="user", content=str(n)) for n in range(40)]
    shown = shorten(messages)
    assert [one.text for one in shown.messages] == ["0", "1", *map(str, range(28, 40))]
    assert shown.left_out == 26
    assert shorten(messages[:14]).messages == tuple(messages[:14])
    assert shorten(messages[:14]).left_out == 0


def test_long_texts_are_cut_in_their_middle_and_short_ones_and_arguments_are_whole() -> None:
    arguments = {"note": "n" * 5_000}
    call = Message(role="assistant", tool_calls=(ToolCall(name="note", arguments=arguments),))
    output = Message(role="tool", content="a" * 4_000 + "b" * 4_000)
    asked = Message(role="user", content="Please note this.")
    shown = shorten([asked, call, output], characters=7_000)
    assert shown.messages[0] == asked
    assert shown.messages[1].tool_calls[0].arguments == arguments
    text = shown.messages[2].text
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "[...]" in text
    assert len(text) + len(asked.text) <= 7_000 - 5_000 + 10
    assert shown.cut == 8_000 - (len(text) - len(" [...] "))


def test_calls_that_alone_exceed_the_bound_are_kept_all_the_same() -> None:
    call = ToolCall(name="note", arguments="x" * 900)
    shown = shorten([Message(role="assistant", content="words", tool_calls=(call,))], 2, 12, 9)
    assert shown.messages[0].tool_calls == (call,)
    assert shown.messages[0].text == " [...] "
