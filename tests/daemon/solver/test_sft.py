"""Supervised training: what was written is learned, what was read is not."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from daemon.solver.lora import attach
from daemon.solver.sft import SftStep, mean_loss, train
from daemon.solver.trajectory import TokenSequence, sequences
from daemon.solver.update import UnstableUpdate
from events.jobs import LoraSettings, OptimizerSettings, SftSettings
from tests.daemon.solver.tiny import groups, tiny_model


def examples(count: int = 6) -> list[TokenSequence]:
    return [sequences(item)[0] for item in groups(0, count=count, size=2)]


def run(model: Any, made: list[TokenSequence], **changes: Any) -> list[SftStep]:
    fields: dict[str, Any] = {
        "optimizer": OptimizerSettings(lr=0.01),
        "epochs": 8,
        "batch_tokens": 60,
    }
    return list(train(model, made, SftSettings(**(fields | changes))))


def flat(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_whole_model_learns_its_examples() -> None:
    model, made = tiny_model(), examples()
    before = mean_loss(model, made, 4096)
    steps = run(model, made, epochs=30)
    assert mean_loss(model, made, 4096) < 0.5 * before
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    assert steps[0].of == len(steps)


def test_an_adapter_learns_and_its_base_does_not() -> None:
    base = tiny_model()
    frozen = flat(base)
    model = attach(base, LoraSettings(), seed=0)
    before = mean_loss(model, examples(), 4096)
    run(model, examples())
    assert mean_loss(model, examples(), 4096) < 0.9 * before
    with model.disable_adapter():
        assert mean_loss(model, examples(), 4096) == pytest.approx(before, abs=1e-6)
    own = [p.detach().flatten() for n, p in model.named_parameters() if "lora_" not in n]
    assert torch.equal(torch.cat(own), frozen)


def test_the_loss_of_a_step_is_the_mean_over_its_written_tokens() -> None:
    made = examples(2)
    (step,) = run(tiny_model(), made, epochs=1, batch_tokens=10_000)
    assert step.loss == pytest.approx(mean_loss(tiny_model(), made, 4096), abs=1e-5)
    assert step.tokens == sum(example.tokens for example in made)


def test_micro_batches_change_nothing() -> None:
    weights = []
    for micro_tokens in (10_000, 40):
        model = tiny_model(dtype=torch.float64)
        run(model, examples(), epochs=2, micro_tokens=micro_tokens)
        weights.append(flat(model))
    torch.testing.assert_close(*weights, atol=1e-6, rtol=0)


def test_what_was_read_is_not_learned() -> None:
    """The gradient does not depend on the identity of ids after the last written token."""
    (example,) = sequences(groups(0)[0])
    tail = TokenSequence((*example.ids, 9, 9), (*example.written, False, False), ())
    padded = TokenSequence(tail.ids, tail.written, (*example.logprobs, 0.0, 0.0))
    weights = []
    for made in (example, padded):
        model = tiny_model(dtype=torch.float64)
        run(model, [made], epochs=1)
        weights.append(flat(model))
    torch.testing.assert_close(*weights, atol=1e-9, rtol=0)


def test_the_order_follows_from_the_seed() -> None:
    losses = [
        [step.loss for step in run(tiny_model(), examples(), epochs=2, seed=seed)]
        for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


@pytest.mark.parametrize(
    ("schedule", "last"), [("constant", 1.0), ("linear", 0.1), ("cosine", 0.1)]
)
def test_the_learning_rate_rises_and_falls_as_told(schedule: str, last: float) -> None:
    steps = run(tiny_model(), examples(), schedule=schedule, warmup=0.25)
    rates = [step.learning_rate / 0.01 for step in steps]
    rising = rates[: len(rates) // 4]
    assert all(one < other for one, other in pairwise(rising))
    assert max(rates) == 1.0
    assert rates[-1] <= last
    falling = rates[len(rates) // 4 :]
    assert falling == sorted(falling, reverse=True)


def test_examples_without_a_written_token_are_an_error() -> None:
    nothing = TokenSequence((3, 4), (False, False), (0.0, 0.0))
    with pytest.raises(ValueError, match="none of 1 examples"):
        run(tiny_model(), [nothing])


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change() -> None:
    model = tiny_model()
    before = flat(model)
    model.model.norm.weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(UnstableUpdate, match=r"1 weights is not finite, the first is model\.norm"):
        run(model, examples())
    assert torch.equal(flat(model), before)
