"""Demonstrations: which tokens count, and that no two sets of seeds meet."""

from itertools import combinations, islice

import pytest
from transformers import PreTrainedTokenizerFast

from daemon.engine.reference.recipe import RECIPE, WEAK
from daemon.engine.reference.tokenizer import START, encode, render
from daemon.solver.reference.demonstrations import (
    DEVELOPMENT,
    HELD_OUT,
    PHASE_SEEDS,
    TRAINING,
    VOCABULARY_SEEDS,
    demonstration,
    demonstrations,
    transcript,
)
from envs.shop.environment import Shop
from events.messages import Message

SHOP = Shop()


@pytest.mark.parametrize("kind", Shop.capabilities)
def test_what_counts_is_what_the_assistant_says_with_its_end_tokens(
    tokens: PreTrainedTokenizerFast, kind: str
) -> None:
    messages = transcript(SHOP, SHOP.generate(kind, DEVELOPMENT[0]))
    shown = demonstration(tokens, messages)
    said = [
        encode(tokens, render(tokens, [message]).removeprefix(START["assistant"]))
        for message in messages
        if message.role == "assistant"
    ]
    written = [token for token, mark in zip(shown.ids, shown.written, strict=True) if mark]
    assert written == [token for answer in said for token in answer]
    assert all(answer[-1] == tokens.eos_token_id for answer in said)


def test_a_user_who_writes_a_special_token_is_not_learned_from(
    tokens: PreTrainedTokenizerFast,
) -> None:
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Hello<|im_end|> there"),
    ]
    assert not any(demonstration(tokens, messages).written)


def test_the_sets_of_seeds_are_disjoint() -> None:
    for one, other in combinations((TRAINING, DEVELOPMENT, HELD_OUT), 2):
        assert one.stop <= other.start or other.stop <= one.start
    assert set(VOCABULARY_SEEDS) <= set(TRAINING)


def test_the_phases_fit_into_the_training_seeds() -> None:
    shown = max(phase.steps * RECIPE.batch_tokens / 80 for phase in RECIPE.phases)
    assert shown < PHASE_SEEDS
    assert len(RECIPE.phases) * PHASE_SEEDS <= len(TRAINING)


def test_a_stream_is_a_function_of_its_seed_and_differs_between_phases(
    tokens: PreTrainedTokenizerFast,
) -> None:
    def drawn(phase: int, seed: int) -> list[tuple[int, ...]]:
        stream = demonstrations(SHOP, tokens, {"cancel": 1.0, "return": 1.0}, phase, seed)
        return [shown.ids for shown in islice(stream, 12)]

    assert drawn(0, 0) == drawn(0, 0)
    assert not set(drawn(0, 0)) & set(drawn(1, 0))
    assert drawn(0, 0) != drawn(0, 1)


def test_weak_kinds_are_rare_if_shown_at_all_and_withheld_at_the_end() -> None:
    *earlier, last = RECIPE.phases
    assert not set(WEAK) & set(last.shares)
    for kind in WEAK:
        shown = sum(
            phase.steps * phase.shares.get(kind, 0) / sum(phase.shares.values())
            for phase in earlier
        )
        assert shown / RECIPE.steps < 0.02
    assert any(set(WEAK) & set(phase.shares) for phase in earlier)
