"""What the scores of a router's labels mean: pure."""

from collections.abc import Sequence
from string import ascii_uppercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.jobs import PanelRouter, RouterOption
from events.rollouts import ChoiceDoubt
from producers.gateway.skills.label_router import (
    ORDERS,
    TIE,
    RouterAnswer,
    build_prompts,
    decide,
    find_label,
    read_scores,
)

COUNTS = st.integers(2, 26)


def make_router(count: int, calibration: Sequence[Sequence[float]] = ()) -> PanelRouter:
    """A router of so many options, the last of them for no skill; label i is token 100 + i."""
    options = tuple(
        RouterOption(
            skill=None if place == count - 1 else f"skill-{place}",
            label=ascii_uppercase[place],
            token=100 + place,
            description=f"description {place}",
        )
        for place in range(count)
    )
    rows = tuple(tuple(row) for row in calibration)
    return PanelRouter(options=options, calibration=rows)


def score(router: PanelRouter, logprobs: Sequence[dict[int, float]]) -> list[tuple[float, ...]]:
    return [read_scores(router, order, row) for order, row in enumerate(logprobs)]


@given(COUNTS)
def test_every_option_has_another_label_in_the_other_order_and_reads_so(count: int) -> None:
    router = make_router(count)
    prompts = build_prompts(router, [{"role": "user", "content": "A refund."}])
    assert len(prompts) == ORDERS
    for option, text in ((option, option.description) for option in router.options):
        labels = []
        for order, prompt in enumerate(prompts):
            (line,) = [line for line in prompt[0]["content"].splitlines() if line.endswith(text)]
            token = find_label(router, order, option.skill)
            label = next(each for each in router.options if each.token == token)
            assert line == f"{label.label}: {text}"
            labels.append(label.label)
        assert len(set(labels)) == ORDERS


@given(COUNTS, st.data())
def test_what_both_orders_choose_is_chosen(count: int, data: st.DataObject) -> None:
    router = make_router(count)
    option = data.draw(st.sampled_from(router.options))
    logprobs = [
        {o.token: -0.5 if o.token == find_label(router, order, option.skill) else -2.0
         for o in router.options}
        for order in range(ORDERS)
    ]  # fmt: skip
    doubt: ChoiceDoubt | None = "none" if option.skill is None else None
    assert decide(router, score(router, logprobs)) == RouterAnswer(option.skill, doubt)


@given(COUNTS, st.data())
def test_a_model_that_always_says_one_label_chooses_nobody(count: int, data: st.DataObject) -> None:
    router = make_router(count)
    favourite = data.draw(st.sampled_from(router.options)).token
    logprobs = [{o.token: -0.1 if o.token == favourite else -3.0 for o in router.options}] * ORDERS
    assert decide(router, score(router, logprobs)) == RouterAnswer(None, "disagreement")


def test_what_labels_score_without_content_is_subtracted() -> None:
    """A bias towards the first label of either order hides the second option until it is known."""
    router = make_router(2)
    bias = [{100: -0.1, 101: -2.0}, {100: -0.1, 101: -2.0}]
    labels = [find_label(router, order, "skill-0") for order in range(ORDERS)]
    said = [
        {token: value + (1.0 if token == label else 0.0) for token, value in row.items()}
        for label, row in zip(labels, bias, strict=True)
    ]
    assert decide(router, score(router, said)) == RouterAnswer(None, "disagreement")
    known = make_router(2, score(router, bias))
    assert decide(known, score(known, said)) == RouterAnswer("skill-0", None)


@pytest.mark.parametrize("gap", [0.0, TIE / 2])
def test_two_choices_with_one_score_are_a_tie_whatever_the_other_order_says(gap: float) -> None:
    router = make_router(2)
    clear = {100: -0.1, 101: -3.0}
    even = {100: -0.7, 101: -0.7 - gap}
    for logprobs in ([even, clear], [clear, even]):
        assert decide(router, score(router, logprobs)) == RouterAnswer(None, "tie")
