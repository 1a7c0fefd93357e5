"""Training: it learns, and does so twice alike."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.reference.recipe import Phase, Recipe
from daemon.engine.reference.tokenizer import token_id
from daemon.methods.lessons.reference.training import LessonPhase, demonstrate_lessons, mix_in
from daemon.solver.reference.train import fresh_model, save, train
from daemon.solver.trajectory import TokenSequence
from envs.asides import OPENING
from envs.shop.environment import Shop
from envs.task import TaskDefinition

SHORT = Recipe(
    phases=(
        Phase(name="one", steps=8, shares={"cancel": 1.0}, rates=(1.0, 1.0)),
        Phase(name="two", steps=4, shares={"cancel": 0.5, "return": 0.5}, rates=(1.0, 0.5)),
    ),
    warmup=4,
    batch_tokens=1024,
    pool=32,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.long
def test_a_few_steps_lower_the_loss(tokens: PreTrainedTokenizerFast) -> None:
    steps = list(train(fresh_model(tokens, 0), tokens, SHORT, 0))
    assert [step.number for step in steps] == list(range(1, 13))
    assert [step.last for step in steps] == [step.number in (8, 12) for step in steps]
    assert steps[7].loss < 0.7 * steps[0].loss
    assert steps[-1].tokens > 12 * 700


def test_the_same_seed_writes_the_same_bytes(
    tokens: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    def trained(name: str, seed: int) -> str:
        model = fresh_model(tokens, seed)
        for _ in islice(train(model, tokens, SHORT, seed), 3):
            pass
        return save(model, tokens, tmp_path / name)

    first = trained("one", 0)
    assert trained("two", 0) == first
    assert trained("three", 1) != first


def test_matrices_and_the_rest_have_their_own_rates(tokens: PreTrainedTokenizerFast) -> None:
    """With the rate of one kind of weights near 0, only the other moves."""
    model = fresh_model(tokens, 0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    still = SHORT.model_copy(update={"adamw_rate": 1e-12})
    next(train(model, tokens, still, 0))
    moved = {name for name, p in model.named_parameters() if (p - before[name]).abs().max() > 1e-9}
    assert moved == {name for name in before if "proj" in name}


def test_lessons_are_shown_in_their_share(
    extended: PreTrainedTokenizerFast, lessons: tuple[TaskDefinition, ...], tmp_path: Path
) -> None:
    model = fresh_model(extended, 0)
    save(model, extended, tmp_path)
    stream = demonstrate_lessons(Shop(), Chat(tmp_path), lessons[:40], 0)
    drawn: list[TokenSequence] = []

    def take() -> Iterator[TokenSequence]:
        for example in stream:
            drawn.append(example)
            yield example

    half = SHORT.model_copy(
        update={
            "phases": (
                LessonPhase(**{**SHORT.phases[0].model_dump(), "steps": 4}, lessons=0.5),
                SHORT.phases[1].model_copy(update={"steps": 2}),
            ),
        }
    )
    steps = list(train(model, extended, half, 0, mix_in(take(), 0)))
    assert len(steps) == 6
    # Examples are drawn a pool at a time, and only the first phase draws lessons.
    assert 0 < len(drawn) < 2 * SHORT.pool
    tag = token_id(extended, OPENING)
    assert any(tag in example.ids for example in drawn)
