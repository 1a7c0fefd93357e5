"""Supervised training on token sequences: for the policy before RL, and for warm starts.

The loss is the mean cross-entropy of a batch's written tokens. All parameters that require a
gradient are trained. The order of the examples is a function of the seed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random

import torch
from torch import Tensor, nn

from daemon.solver.batch import Row, micro_batches, pad
from daemon.solver.lora import trainable_parameters
from daemon.solver.policy import check, check_ids, score
from daemon.solver.trajectory import TokenSequence
from daemon.solver.update import UnstableUpdate, adamw, clip_gradient
from events.jobs import SftSettings
from events.messages import StrictModel


class SftStep(StrictModel):
    """Figures of one optimizer step."""

    step: int
    of: int
    loss: float
    """Loss in nats per written token, before the step."""
    tokens: int
    gradient_norm: float
    learning_rate: float


def train(
    model: nn.Module, examples: Sequence[TokenSequence], settings: SftSettings
) -> Iterator[SftStep]:
    """Yield the figures of each optimizer step; training advances only when iterated. Raise
    ValueError if the model wrote no token, UnstableUpdate, IncompatibleModel."""
    rows = [Row(example, 0.0, example.tokens) for example in examples if example.tokens]
    if not rows:
        raise ValueError(f"none of {len(examples)} examples has a token to learn from")
    check(model)
    check_ids(model, max(max(row.sequence.ids) for row in rows))
    parameters = trainable_parameters(model)
    optimizer = adamw(settings.optimizer, parameters.values())
    batches = list(_plan(rows, settings))
    device = next(iter(parameters.values())).device
    for number, batch in enumerate(batches):
        rate = settings.optimizer.lr * _pace(number, len(batches), settings)
        losses = _list_losses(model, batch, settings.micro_tokens, device)
        limit = settings.optimizer.max_gradient_norm
        loss, norm = take_step(optimizer, rate, parameters, limit, losses, "supervised step")
        yield SftStep(
            step=number + 1,
            of=len(batches),
            loss=loss,
            tokens=sum(row.sequence.tokens for row in batch),
            gradient_norm=norm,
            learning_rate=rate,
        )


def _plan(rows: Sequence[Row], settings: SftSettings) -> Iterator[list[Row]]:
    for epoch in range(settings.epochs):
        order = list(rows)
        Random(f"sft {settings.seed} {epoch}").shuffle(order)
        batch: list[Row] = []
        for row in order:
            if batch and sum(other.length for other in batch) + row.length > settings.batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        yield batch


def _pace(number: int, total: int, settings: SftSettings) -> float:
    rising = math.ceil(settings.warmup * total)
    if number < rising:
        return (number + 1) / rising
    left = 1 - (number - rising) / (total - rising)
    if settings.schedule == "constant":
        return 1.0
    return left if settings.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2


def _list_losses(
    model: nn.Module, batch: Sequence[Row], micro_tokens: int, device: torch.device
) -> Iterator[Tensor]:
    tokens = sum(row.sequence.tokens for row in batch)
    for micro in micro_batches(batch, micro_tokens):
        yield -score(model, pad(micro, device)).logp.sum() / tokens


def take_step(
    optimizer: torch.optim.Optimizer,
    rate: float,
    parameters: Mapping[str, nn.Parameter],
    limit: float,
    losses: Iterable[Tensor],
    what: str,
) -> tuple[float, float]:
    """Take one optimizer step on the sum of `losses`. Return that sum and the gradient's norm
    before it is clipped to `limit`. Raise UnstableUpdate; its text names the step by `what`."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    for part in losses:
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.item()
    norm = clip_gradient(parameters, limit)
    if isinstance(norm, str) or not math.isfinite(loss):
        raise UnstableUpdate(f"{what}: loss {loss:g}, {norm}; lower optimizer.lr")
    optimizer.step()
    return loss, norm


def mean_loss(model: nn.Module, examples: Iterable[TokenSequence], micro_tokens: int) -> float:
    """Return the mean loss in nats per written token of these examples; do not train."""
    rows = [Row(example, 0.0, example.tokens) for example in examples if example.tokens]
    device = next(model.parameters()).device
    with torch.no_grad():
        parts = [
            float(score(model, pad(micro, device)).logp.double().sum())
            for micro in micro_batches(rows, micro_tokens)
        ]
    return -math.fsum(parts) / max(sum(row.sequence.tokens for row in rows), 1)
