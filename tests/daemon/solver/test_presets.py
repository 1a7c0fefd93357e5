"""Presets from a batch of rollouts to the loss, against plain formulas of the papers."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from daemon.config.presets import preset
from daemon.solver.batch import Row, choose, denominators, pad, rows
from daemon.solver.loss import LossInputs, policy_loss
from daemon.solver.trajectory import Trajectory, sequences
from events.algorithm import Algorithm, FilterConfig
from tests.daemon.solver.plain_presets import FORMULAS, Array, Rollout
from tests.daemon.solver.tiny import ENDS, conversation, trajectory, turn

KINDS = ("mixed", "failing", "passing", "equal", "symmetric", "cut off")


def make_batch(seed: int) -> list[Trajectory]:
    """Groups of four that the filters tell apart: rewards that differ under one verdict, equal ones
    under two, one that is exactly its group's mean, one that was cut off."""
    chance = Random(f"presets {seed}")
    batch: list[Trajectory] = []
    for kind in KINDS:
        for member in range(4):
            success = {"failing": False, "passing": True}.get(kind, member % 2 == 0)
            reward = {"equal": 0.5, "symmetric": (0.25, 0.5, 0.5, 0.75)[member]}.get(
                kind, round(chance.random(), 3)
            )
            item = conversation(chance, f"{kind}/{member}", kind, success=success)
            batch.append(replace(item, reward=reward))
    ids = tuple(chance.randrange(2, 32) for _ in range(9))
    cut = turn(list(ids[:4]), list(ids[4:]), truncated=True)
    batch[-1] = trajectory(cut, rollout="cut", group="cut off", success=False, reward=0.1)
    return batch


def describe(batch: list[Trajectory], seed: int) -> dict[tuple[int, ...], Rollout]:
    """Ids of each rollout's sequence -> the rollout with random log-probabilities."""
    chance = np.random.default_rng(seed)
    described = {}
    for item in batch:
        (sequence,) = sequences(item, "rollout")
        logp = chance.normal(-1.5, 0.4, sequence.tokens)
        described[sequence.ids] = Rollout(
            group=item.group,
            reward=float(item.reward or 0.0),
            success=bool(item.success),
            cut_off=item.is_incomplete,
            logp=logp,
            old=logp - chance.normal(0, 0.3, sequence.tokens),
            ref=logp - chance.normal(0, 0.3, sequence.tokens),
        )
    assert len(described) == len(batch)
    return described


def product_loss(
    chosen: list[Row], described: dict[tuple[int, ...], Rollout], algorithm: Algorithm
) -> tuple[float, dict[tuple[int, ...], Array]]:
    """The loss of our own code, and its gradient by the log-probability of each written token."""
    padded = pad(chosen)
    written = padded.mask > 0

    def place(name: str) -> torch.Tensor:
        values = torch.zeros(written.shape, dtype=torch.float64)
        for number, row in enumerate(chosen):
            own = getattr(described[row.sequence.ids], name)
            values[number, written[number]] = torch.tensor(own)
        return values

    logp = place("logp").requires_grad_()
    inputs = LossInputs(
        logp=logp,
        old_logp=place("old"),
        mask=padded.mask.double(),
        advantage=torch.tensor([row.advantage for row in chosen], dtype=torch.float64),
        ref_logp=place("ref"),
        rollout_tokens=padded.rollout_tokens.double(),
    )
    loss = policy_loss(inputs, algorithm.loss, denominators(chosen))
    (gradient,) = torch.autograd.grad(loss, logp)
    return loss.item(), {
        row.sequence.ids: gradient[number, written[number]].numpy()
        for number, row in enumerate(chosen)
    }


def differentiate(
    name: str, described: dict[tuple[int, ...], Rollout]
) -> dict[tuple[int, ...], Array]:
    """The plain formula's derivatives, by central differences."""
    step = 1e-6
    slopes: dict[tuple[int, ...], Array] = {}
    for ids, rollout in described.items():
        slope = np.zeros_like(rollout.logp)
        for place in range(len(slope)):
            values = []
            for sign in (1, -1):
                moved = rollout.logp.copy()
                moved[place] += sign * step
                others = described | {ids: replace(rollout, logp=moved)}
                values.append(FORMULAS[name](list(others.values())))
            slope[place] = (values[0] - values[1]) / (2 * step)
        slopes[ids] = slope
    return slopes


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradient_of_a_batch_are_those_of_the_published_formula(
    name: str, seed: int
) -> None:
    algorithm, batch = preset(name), make_batch(seed)
    described = describe(batch, seed)
    selection = choose(batch, algorithm, ENDS)
    chosen = [row for part in rows(selection, algorithm, selection.kept.groups) for row in part]
    loss, gradient = product_loss(chosen, described, algorithm)
    assert loss == pytest.approx(FORMULAS[name](list(described.values())), abs=1e-9)
    for ids, slope in differentiate(name, described).items():
        own = gradient.get(ids, np.zeros_like(slope))
        np.testing.assert_allclose(own, slope, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "groups", "rollouts"),
    [
        ("sr_paper", {"mixed", "failing", "passing", "symmetric", "cut off"}, 4 * 5 - 2 - 1),
        ("sr_code", {"mixed", "failing", "passing", "symmetric", "cut off"}, 4 * 5),
        ("dapo", {"mixed", "equal", "symmetric", "cut off"}, 4 * 4 - 1),
        ("gspo", set(KINDS), 4 * 6),
    ],
)
def test_each_algorithm_trains_on_its_own_groups_and_rollouts(
    name: str, groups: set[str], rollouts: int
) -> None:
    algorithm = preset(name)
    selection = choose(make_batch(0), algorithm, ENDS)
    assert set(selection.kept.groups) == groups
    assert len(rows(selection, algorithm, selection.kept.groups)) == rollouts


def test_a_dispersion_is_one_of_rewards() -> None:
    with pytest.raises(ValueError, match=r"dispersion of 0\.1 .* 'reward'"):
        FilterConfig(min_dispersion=0.1)
    with pytest.raises(ValueError, match="uniform 'zero' is about verdicts"):
        FilterConfig(on="reward", uniform="zero")
    wide = Algorithm(filter=FilterConfig(on="reward", min_dispersion=0.5))
    assert "symmetric" not in choose(make_batch(0), wide, ENDS).kept.groups
    near = Algorithm(filter=FilterConfig(on="reward", min_dispersion=0.49))
    assert "symmetric" in choose(make_batch(0), near, ENDS).kept.groups


def test_what_is_at_its_default_is_not_written() -> None:
    """Specs that were stored before keep their digests."""
    assert FilterConfig().model_dump() == {
        "informative": True, "most": 1.0, "refill": 0, "fallback": "skip",
    }  # fmt: skip
    changed = FilterConfig(on="reward", min_dispersion=0.1, min_advantage=0.0)
    assert FilterConfig.model_validate_json(changed.model_dump_json()) == changed
