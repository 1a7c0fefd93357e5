"""Fit a router's head: K rows whose products with the base's last hidden state are added to the
logits of the router's K labels.

    inputs = compute_inputs(model, router, examples, micro_tokens)     one forward of each prompt
    fitted = fit(inputs.select(learnt), seed)                          the rows
    figures = assess(router, inputs.select(others), held_out, fitted)  by the rule of a gateway

It is multinomial logistic regression with an L2 penalty on the rows, added to the base's own
logits; every option has the same weight. A LoRA has no bias, so the part of a row along the mean
state serves as one. The penalty is chosen by the lowest cross-entropy over folds of the examples.
The problem is convex and computed in float64, so it needs no learning rate, and its only seed is
that of the folds. A part that all rows share changes no choice. It makes the labels the likeliest
answers to the fitted prompts, so any answer tells whether an engine holds the head
(daemon/adapters/fingerprint.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from daemon.methods.skills.routing.examples import Example
from daemon.methods.skills.routing.figures import RouterFigures, summarize
from daemon.methods.skills.routing.scores import cut_batches
from daemon.solver.policy import parts
from events.jobs import PanelRouter
from producers.gateway.skills.label_router import list_label_tokens

_PENALTIES: Final = (1e-2, 1e-3, 1e-4, 1e-5)
"""Penalties to try: weights of half the rows' squared norm, at unit variance, loss in nats."""
_LEAST_PENALTY: Final = 1e-6
_LEAST_GRADIENT: Final = 1e-5
"""A regression ends when no element of its gradient is larger."""
_LEAST_SPREAD: Final = 1e-5
"""States whose relative deviation is smaller count as equal: rows along it would be noise."""
_FOLDS: Final = 4
_ITERATIONS: Final = 200
"""Most iterations of one regression."""
_MARGIN: Final = 5.0
"""Nats by which the labels together lead all tokens of the base's own head, on average."""


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """The data of N examples to which a head is fitted, in float64."""

    states: Tensor
    """(N, D) last hidden states."""
    logits: Tensor
    """(N, K) logits of the labels by the base's own head."""
    totals: Tensor
    """(N,) log-sum-exp of the head's logits over all tokens."""
    places: Tensor
    """(N,) indices of the right options."""

    def select(self, chosen: Sequence[int]) -> "HeadInputs":
        """Return the inputs of the chosen examples."""
        index = torch.tensor(chosen, dtype=torch.int64)
        return HeadInputs(
            self.states[index], self.logits[index], self.totals[index], self.places[index]
        )

    def score(self, rows: Tensor) -> Tensor:
        """Return the (N, K) logits of the labels after (K, D) rows are added to the head."""
        return self.logits + self.states @ rows.T

    def compute_loss(self, rows: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats; each option with examples has the same weight."""
        counts = self.places.bincount()
        weights = 1 / counts[self.places] / (counts > 0).sum()
        losses = cross_entropy(self.score(rows), self.places, reduction="none")
        return (losses * weights).sum()


@dataclass(frozen=True, slots=True)
class FittedHead:
    """The rows of a fitted head, and how the fit went."""

    rows: Tensor
    """(K, D) rows in float64, in the order of the router's options."""
    penalty: float
    iterations: int
    """Number of iterations of the last regression."""
    loss: float
    """Cross-entropy on the fitted examples, in nats."""


def compute_inputs(
    model: nn.Module, router: PanelRouter, examples: Sequence[Example], micro_tokens: int
) -> HeadInputs:
    """Return the data to fit. A forward pass has at most `micro_tokens` padded tokens."""
    body, head = parts(model)
    device = next(head.parameters()).device
    prompts = [example.prompts[0] for example in examples]
    states = [torch.empty(0)] * len(prompts)
    with torch.no_grad():
        for places in cut_batches(prompts, micro_tokens):
            rows = [torch.tensor(prompts[place], device=device) for place in places]
            # Rows are padded on the right; a causal model reads no later token.
            ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
            hidden: Any = body(input_ids=ids, use_cache=False).last_hidden_state
            for number, (place, row) in enumerate(zip(places, rows, strict=True)):
                states[place] = hidden[number, len(row) - 1]
        logits = [head(state).double() for state in states]
    labels = list_label_tokens(router)
    options = [option.skill for option in router.options]
    return HeadInputs(
        torch.stack(states).double().cpu(),
        torch.stack([row[labels] for row in logits]).cpu(),
        torch.stack([row.logsumexp(-1) for row in logits]).cpu(),
        torch.tensor([options.index(example.skill) for example in examples]),
    )


def fit(inputs: HeadInputs, seed: int) -> FittedHead:
    """Fit the rows that choose best; `seed` draws the folds that select the penalty."""
    penalty = _choose_penalty(inputs, seed)
    rows, iterations = _solve(inputs, penalty, None)
    loss = float(inputs.compute_loss(rows))
    return FittedHead(_raise_labels(inputs, rows), penalty, iterations, loss)


def assess(
    router: PanelRouter, inputs: HeadInputs, held_out: Sequence[Example], fitted: FittedHead
) -> RouterFigures:
    """Return the figures on the examples `held_out`, whose data `inputs` holds."""
    scores = inputs.score(fitted.rows).log_softmax(-1).tolist()
    return summarize(router, held_out, [(row,) for row in scores], fitted.loss)


def _choose_penalty(inputs: HeadInputs, seed: int) -> float:
    """Return the penalty with the lowest loss on examples that were not fitted."""
    folds = _draw_folds(inputs.places.tolist(), seed)
    losses = dict.fromkeys(_PENALTIES, 0.0)
    for fold in folds:
        others = sorted(set(range(len(inputs.places))) - set(fold))
        learnt, unseen = inputs.select(others), inputs.select(fold)
        rows: Tensor | None = None
        for penalty in _PENALTIES:
            rows, _ = _solve(learnt, penalty, rows)
            losses[penalty] += float(unseen.compute_loss(rows)) * len(fold)
    return min(losses, key=lambda penalty: losses[penalty])


def _draw_folds(places: Sequence[int], seed: int) -> list[list[int]]:
    """Return the examples' indices in each fold; the options are spread evenly over folds."""
    folds: list[list[int]] = [[] for _ in range(_FOLDS)]
    for option in sorted(set(places)):
        own = [number for number, place in enumerate(places) if place == option]
        Random(f"head {seed} folds {option}").shuffle(own)
        for number, example in enumerate(own):
            folds[(option + number) % _FOLDS].append(example)
    # A fold with no example, or with all of them, tells nothing.
    return [fold for fold in folds if 0 < len(fold) < len(places)]


def _solve(inputs: HeadInputs, penalty: float, start: Tensor | None) -> tuple[Tensor, int]:
    """Return the best rows and the number of iterations. Along the mean state, where a row replaces
    a bias, only the least penalty applies, which makes the minimum unique."""
    mean = inputs.states.mean(0)
    along = inputs.states @ mean / mean.square().sum()
    across = inputs.states - along[:, None] * mean
    scale = across.square().mean().sqrt()
    if not scale > _LEAST_SPREAD * mean.square().mean().sqrt():
        across, scale = torch.zeros_like(across), torch.ones_like(scale)
    # The columns have similar size; otherwise a regression takes ten times the iterations.
    features = torch.cat([across / scale, along[:, None]], 1)
    weights = torch.full_like(features[0], penalty)
    weights[-1] = _LEAST_PENALTY
    split = HeadInputs(features, inputs.logits, inputs.totals, inputs.places)
    if start is None:
        rows = features.new_zeros(inputs.logits.shape[1], features.shape[1])
    else:
        rows = torch.cat([start * scale, (start @ mean)[:, None]], 1)
    rows.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [rows],
        max_iter=_ITERATIONS,
        tolerance_grad=_LEAST_GRADIENT,
        tolerance_change=1e-10,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def compute_objective() -> Tensor:
        optimizer.zero_grad()
        objective = split.compute_loss(rows) + (weights * rows.square()).sum() / 2
        objective.backward()  # type: ignore[no-untyped-call]
        return objective

    optimizer.step(compute_objective)  # type: ignore[no-untyped-call]
    best = rows.detach()
    own = best[:, :-1] / scale
    own = own - (own @ mean / mean.square().sum())[:, None] * mean
    return own + best[:, -1:] * mean / mean.square().sum(), int(optimizer.state[rows]["n_iter"])


def _raise_labels(inputs: HeadInputs, rows: Tensor) -> Tensor:
    """Add one multiple of the mean state to all rows: choices stay, and labels lead all tokens."""
    mean = inputs.states.mean(0)
    lacking = (inputs.totals - inputs.score(rows).logsumexp(-1)).mean() + _MARGIN
    return rows + lacking * mean / mean.square().sum()
