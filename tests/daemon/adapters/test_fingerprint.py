"""Fingerprints: how far apart answers are, what is proven by it, and what is refused."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.adapters.fingerprint import (
    EXACT,
    LENGTH,
    LIKELIEST,
    PROBES,
    TOKENS,
    BaseMixup,
    Expectation,
    Fingerprint,
    NotProven,
    OtherBase,
    Step,
    Unreadable,
    distance,
    parse_answer,
    prompts,
    prove,
    prove_base,
    question,
    tolerance,
)

PROMPTS = ((1, 2), (3, 4))

Json = dict[str, Any]


def said(*shifts: float, first: int = 7) -> Fingerprint:
    """Two answers whose log-probabilities are moved, step by step."""
    steps: list[Step] = [
        ((first, -1.0 + shift), (8, -1.5 - shift), (9, -2.0)) for shift in shifts or (0.0,) * TOKENS
    ]
    return Fingerprint(answers=(tuple(steps), tuple(steps)))


def moved(shift: float) -> Fingerprint:
    return said(*(shift,) * TOKENS)


def expecting(adapter: float, base: float = 0.0) -> Expectation:
    return Expectation(prompts=PROMPTS, dtype="float32", base=moved(base), adapter=moved(adapter))


def document(**changes: Any) -> Json:
    """A server's answer to the two prompts."""
    told = [{f"token_id:{token}": chance for token, chance in s} for s in said().answers[0]]
    choice = {"token_ids": [7] * TOKENS, "logprobs": {"top_logprobs": told}, **changes}
    # As they came to an end, not as they were asked.
    choices = [{"index": n, "prompt_token_ids": list(PROMPTS[n]), **choice} for n in (1, 0)]
    return {"choices": choices}


def test_the_prompts_follow_from_the_size_of_the_vocabulary_alone() -> None:
    found = prompts(870)
    assert found == prompts(870)
    assert found != prompts(1740)
    assert {len(one) for one in found} == {LENGTH}
    assert len(set(found)) == PROBES


@given(st.integers(16, 300_000))
def test_prompts_hold_no_token_of_either_end_of_the_vocabulary(vocabulary: int) -> None:
    ids = {token for one in prompts(vocabulary) for token in one}
    assert vocabulary // 8 <= min(ids) <= max(ids) < vocabulary - vocabulary // 8


def test_a_question_asks_for_everything_that_is_compared() -> None:
    asked = question("a-7", PROMPTS)
    assert asked["model"] == "a-7"
    assert asked["prompt"] == [[1, 2], [3, 4]]
    assert (asked["temperature"], asked["max_tokens"]) == (0, TOKENS)
    assert asked["logprobs"] == LIKELIEST


def test_an_answer_is_read_in_the_order_of_the_prompts() -> None:
    assert parse_answer(document(), PROMPTS) == said()


def test_the_token_that_was_written_comes_first_also_where_another_is_as_likely() -> None:
    told = [{"token_id:8": -1.0, "token_id:7": -1.0, "token_id:9": -3.0}] * TOKENS
    found = parse_answer(document(logprobs={"top_logprobs": told}), PROMPTS)
    assert found.answers[0][0] == ((7, -1.0), (8, -1.0), (9, -3.0))


UNREADABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "cannot be read"),
    "an error": (lambda: {"error": {}}, "cannot be read"),
    "no log-probabilities": (lambda: document(logprobs=None), "must tell token ids"),
    "texts in the place of ids": (
        lambda: document(logprobs={"top_logprobs": [{"a": -1.0}] * TOKENS}),
        "cannot be read",
    ),
    "a token that is not told": (lambda: document(token_ids=[5] * TOKENS), "KeyError"),
    "an infinity": (
        lambda: document(logprobs={"top_logprobs": [{"token_id:7": -inf}] * TOKENS}),
        "no number",
    ),
    "another prompt": (lambda: document(prompt_token_ids=[1]), "other prompts"),
    "too few tokens": (
        lambda: document(token_ids=[7], logprobs={"top_logprobs": [{"token_id:7": -1.0}]}),
        f"has 1 tokens, not the {TOKENS}",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_answer_without_what_was_asked_for_is_no_fingerprint(name: str) -> None:
    made, why = UNREADABLE[name]
    with pytest.raises(Unreadable, match=why):
        parse_answer(made(), PROMPTS)


def test_the_distance_is_the_root_mean_square_of_what_both_tell() -> None:
    assert distance(said(), said()) == 0
    # Two of three log-probabilities differ by 0.3 at every step.
    assert distance(moved(0.3), moved(0.0)) == pytest.approx((2 * 0.09 / 3) ** 0.5)


def test_a_token_that_only_one_tells_differs_by_the_least_it_can() -> None:
    one = Fingerprint(answers=((((1, -0.5), (2, -1.0)),),))
    other = Fingerprint(answers=((((1, -0.5), (3, -2.5)),),))
    # 2 is at -1.0 here and below -2.5 there; 3 is at -2.5 there and may be below -1.0 here.
    assert distance(one, other) == pytest.approx(((0 + 0 + 1.5**2 + 0) / 4) ** 0.5)


def test_what_follows_another_token_does_not_count() -> None:
    first = said(0.0, 0.0, 0.0, 0.0)
    rest = (((8, -1.0), (7, -1.0)),), (((5, -9.0), (6, -9.5)),)
    parted = Fingerprint(answers=(rest[0] + rest[1] * (TOKENS - 1),) * 2)
    again = Fingerprint(answers=(rest[0] + rest[0] * (TOKENS - 1),) * 2)
    assert distance(first, parted) == distance(first, again)


chances = st.floats(-20, 0).map(lambda value: round(value, 6))
steps = st.lists(
    st.tuples(st.integers(0, 9), chances), min_size=2, max_size=4, unique_by=lambda pair: pair[0]
).map(tuple)
fingerprints = st.lists(st.tuples(steps, steps), min_size=2, max_size=2).map(
    lambda answers: Fingerprint(answers=tuple(answers))
)


@given(fingerprints, fingerprints)
def test_distances_have_no_direction_and_are_zero_to_oneself(
    one: Fingerprint, other: Fingerprint
) -> None:
    assert distance(one, other) == pytest.approx(distance(other, one))
    assert distance(one, one) == 0


def test_the_tolerance_is_what_the_base_shows_and_never_below_exact() -> None:
    assert tolerance(moved(0.0), expecting(1.0)) == EXACT
    coarse = moved(0.05)
    assert tolerance(coarse, expecting(1.0)) == pytest.approx(3 * distance(coarse, moved(0.0)))


def test_another_base_is_no_question_of_precision() -> None:
    with pytest.raises(OtherBase, match="serve the base that the adapter was trained on"):
        tolerance(moved(1.0), expecting(1.0))


def test_a_base_beside_an_adapter_is_itself_within_the_tolerance() -> None:
    assert prove_base(moved(0.25), expecting(0.5), tolerance=0.25) == distance(said(), moved(0.25))
    with pytest.raises(BaseMixup, match=r"while an adapter answers, .* 0\.4082 .*ops/vllm/mend"):
        prove_base(moved(0.5), expecting(0.5), tolerance=0.25)


def test_an_answer_as_expected_is_proven_with_its_distances() -> None:
    proof = prove(moved(0.5001), expecting(0.5), EXACT)
    assert proof.distance == pytest.approx(0.0001 * (2 / 3) ** 0.5, rel=1e-3)
    assert proof.from_base == pytest.approx(0.5 * (2 / 3) ** 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("shift", "named"), [(0.0, r"nearest is its base, at 0\.0000"), (0.4, "nearest is a-6")]
)
def test_what_answers_in_the_adapters_place_is_named(shift: float, named: str) -> None:
    with pytest.raises(NotProven, match=named):
        prove(moved(shift), expecting(0.5), EXACT, {"a-6": expecting(0.4)})


def test_a_rival_within_the_tolerance_is_found_all_the_same() -> None:
    rivals = {"a-6": expecting(0.45)}
    assert prove(moved(0.51), expecting(0.5), 0.1, rivals).distance < 0.01
    with pytest.raises(NotProven, match="cannot be told from a-6"):
        prove(moved(0.46), expecting(0.5), 0.1, rivals)


def test_an_adapter_that_does_what_its_base_does_cannot_be_proven() -> None:
    with pytest.raises(NotProven, match="cannot be told from its base"):
        prove(moved(0.0), expecting(0.0), EXACT)


def test_the_same_weights_under_another_name_are_no_rival() -> None:
    assert prove(moved(0.5), expecting(0.5), EXACT, {"again": expecting(0.5)}).distance == 0


def test_an_adapter_of_another_base_is_no_rival() -> None:
    other = Expectation(prompts=((9,),), dtype="float32", base=said(), adapter=said())
    assert prove(moved(0.5), expecting(0.5), EXACT, {"other": other}).distance == 0
