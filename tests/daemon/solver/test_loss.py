"""The loss: equal to an independent version, blind to what the model did not write."""

import itertools
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from daemon.solver.loss import Denominators, LossInputs, policy_loss
from events.algorithm import Aggregation, KlConfig, Level, LossConfig, TisConfig
from tests.daemon.solver.plain_loss import Array, Arrays, plain_loss

LEVELS: tuple[Level, ...] = get_args(Level)
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)


def one_of(chance: np.random.Generator, *values: Any) -> Any:
    return values[int(chance.integers(len(values)))]


def random_config(chance: np.random.Generator, number: int) -> LossConfig:
    """Levels and aggregations in turn, everything else by chance."""
    pairs = list(itertools.product(LEVELS, AGGREGATIONS))
    level, aggregation = pairs[number % len(pairs)]
    tis = TisConfig(
        mode=one_of(chance, "none", "truncate", "mask"),
        level=one_of(chance, "token", "sequence", "geometric"),
        lo=one_of(chance, 0.0, 0.5),
        hi=one_of(chance, 1.5, 2.0, 5.0),
    )
    kl = KlConfig(
        estimator=one_of(chance, "k1", "k2", "k3", "k2_st_k3"),
        beta=one_of(chance, 0.0, 0.05, 0.5),
        unbiased=bool(chance.integers(2)),
    )
    return LossConfig(
        level=level,
        lo=one_of(chance, 0.0003, 0.2, 0.4),
        hi=one_of(chance, 0.0004, 0.28),
        dual=one_of(chance, None, 1.5, 3.0),
        log_ratio_clamp=one_of(chance, None, 0.5, 20.0),
        tis=tis,
        kl=kl,
        aggregation=aggregation,
        t_max=one_of(chance, None, 16),
    )


def random_arrays(chance: np.random.Generator) -> Arrays:
    """A batch of any shape; some rows empty, some masked in the middle, padding infinite."""
    rows, width = int(chance.integers(1, 8)), int(chance.integers(1, 14))
    mask = (chance.random((rows, width)) < chance.choice([0.2, 0.7, 1.0])).astype(float)
    mask[chance.random(rows) < 0.2] = 0.0
    logp = -chance.gamma(2.0, 0.7, (rows, width))
    old = logp + chance.normal(0, 0.4, (rows, width))
    roll, ref = (old + chance.normal(0, 0.4, (rows, width)) for _ in range(2))
    advantage = chance.normal(0, 1.5, rows) * (chance.random(rows) < 0.8)
    tokens = mask.sum(axis=1)
    split = tokens + chance.integers(0, 5, rows) if chance.random() < 0.3 else None
    padding = chance.choice([-np.inf, np.inf, -1.0, np.nan])
    for array in (logp, old, roll, ref):
        array[mask == 0] = padding
    return Arrays(logp, old, roll, ref, mask, advantage, split)


def tensors(arrays: Arrays) -> LossInputs:
    def tensor(array: Array) -> torch.Tensor:
        return torch.tensor(array, dtype=torch.float64)

    return LossInputs(
        logp=tensor(arrays.logp).requires_grad_(),
        old_logp=tensor(arrays.old),
        mask=tensor(arrays.mask),
        advantage=tensor(arrays.advantage),
        sampler_logp=tensor(arrays.roll),
        ref_logp=tensor(arrays.ref),
        rollout_tokens=None if arrays.rollout_tokens is None else tensor(arrays.rollout_tokens),
    )


def product_loss(arrays: Arrays, config: LossConfig) -> tuple[float, Array]:
    batch = tensors(arrays)
    loss = policy_loss(batch, config)
    (gradient,) = torch.autograd.grad(loss, batch.logp)
    return loss.item(), gradient.numpy()


@pytest.mark.parametrize("number", range(200))
def test_loss_and_gradient_are_those_of_a_plain_version(number: int) -> None:
    chance = np.random.default_rng(number)
    config, arrays = random_config(chance, number), random_arrays(chance)
    expected_loss, expected_gradient = plain_loss(arrays, config)
    loss, gradient = product_loss(arrays, config)
    assert loss == pytest.approx(expected_loss, abs=1e-9, rel=1e-9)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-9, rtol=1e-9)


def test_the_random_batches_reach_every_branch() -> None:
    """Else the comparison above would prove less than it says."""
    empty = inside = clipped = dual = dropped = truncated = split = 0
    for number in range(200):
        chance = np.random.default_rng(number)
        config, arrays = random_config(chance, number), random_arrays(chance)
        on = arrays.mask > 0
        ratio = np.exp(arrays.logp[on] - arrays.old[on])
        sign = np.repeat(arrays.advantage, on.sum(axis=1))
        weight = np.exp(arrays.old[on] - arrays.roll[on])
        empty += int((arrays.mask.sum(axis=1) == 0).any())
        inside += int((np.abs(ratio - 1) < config.lo).any())
        clipped += int(((ratio > 1 + config.hi) & (sign > 0)).any())
        dual += int(bool(config.dual) and ((ratio > (config.dual or 0)) & (sign < 0)).any())
        dropped += int(config.tis.mode == "mask" and (weight > config.tis.hi).any())
        truncated += int(config.tis.mode == "truncate" and (weight > config.tis.hi).any())
        split += arrays.rollout_tokens is not None
    assert min(empty, inside, clipped, dual, dropped, truncated, split) >= 5


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "sequence_token"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_is_the_slope_of_the_loss(level: Level, aggregation: Aggregation) -> None:
    # sequence_token stops gradients on purpose: its slope is not its gradient.
    chance = np.random.default_rng(7)
    kl = KlConfig(estimator="k3", beta=0.05, unbiased=True)
    tis = TisConfig(mode="truncate")
    config = LossConfig(level=level, aggregation=aggregation, dual=3.0, kl=kl, tis=tis)
    arrays = random_arrays(chance)
    _, gradient = product_loss(arrays, config)
    for i, t in np.argwhere(arrays.mask > 0):
        step = np.zeros_like(arrays.logp)
        step[i, t] = 1e-6
        above, _ = product_loss(replace(arrays, logp=arrays.logp + step), config)
        below, _ = product_loss(replace(arrays, logp=arrays.logp - step), config)
        assert gradient[i, t] == pytest.approx((above - below) / 2e-6, abs=1e-7)


def test_sequence_token_equals_sequence_in_value_and_gradient() -> None:
    """GSPO-token: equal for one advantage per sequence, token mean inside and equal weights."""
    arrays = random_arrays(np.random.default_rng(3))
    one, other = (LossConfig(level=level) for level in ("sequence", "sequence_token"))
    loss, gradient = product_loss(arrays, one)
    other_loss, other_gradient = product_loss(arrays, other)
    assert loss == pytest.approx(other_loss, abs=1e-12)
    np.testing.assert_allclose(gradient, other_gradient, atol=1e-12)


@pytest.mark.parametrize("name", ["logp", "old", "roll", "ref"])
def test_tokens_that_the_model_did_not_write_change_nothing(name: str) -> None:
    """In no ratio, no divergence, no weight of TIS and no denominator."""
    kl, tis = KlConfig(beta=0.1), TisConfig(mode="truncate", level="sequence")
    for level, aggregation in itertools.product(LEVELS, AGGREGATIONS):
        config = LossConfig(level=level, aggregation=aggregation, kl=kl, tis=tis)
        arrays = random_arrays(np.random.default_rng(11))
        assert (arrays.mask == 0).any()
        changed = getattr(arrays, name).copy()
        changed[arrays.mask == 0] = 123.0
        loss, gradient = product_loss(arrays, config)
        other_loss, other_gradient = product_loss(replace(arrays, **{name: changed}), config)
        assert loss == other_loss
        np.testing.assert_array_equal(gradient, other_gradient)
        assert not gradient[arrays.mask == 0].any()


def test_a_batch_without_a_trainable_token_has_loss_and_gradient_zero() -> None:
    arrays = random_arrays(np.random.default_rng(5))
    arrays = replace(arrays, mask=np.zeros_like(arrays.mask))
    for level, aggregation in itertools.product(LEVELS, AGGREGATIONS):
        loss, gradient = product_loss(arrays, LossConfig(level=level, aggregation=aggregation))
        assert loss == 0.0
        assert not gradient.any()


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_rows_without_a_trainable_token_dilute_no_mean(aggregation: Aggregation) -> None:
    arrays = random_arrays(np.random.default_rng(6))
    rows = arrays.mask.shape[0]
    arrays = replace(arrays, rollout_tokens=None)
    twice = {
        name: np.concatenate([getattr(arrays, name)] * 2)
        for name in ("logp", "old", "roll", "ref", "mask", "advantage")
    }
    twice["mask"][rows:] = 0.0
    doubled = Arrays(**twice)
    config = LossConfig(aggregation=aggregation)
    loss, gradient = product_loss(arrays, config)
    with_empty, with_empty_gradient = product_loss(doubled, config)
    assert loss == pytest.approx(with_empty, abs=1e-15)
    np.testing.assert_allclose(gradient, with_empty_gradient[:rows], atol=1e-15)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_parts_of_a_batch_add_up_to_it(aggregation: Aggregation) -> None:
    """With the denominators of the whole, whatever the micro-batches."""
    chance = np.random.default_rng(8)
    arrays = random_arrays(chance)
    while arrays.mask.shape[0] < 5 or arrays.rollout_tokens is None:
        arrays = random_arrays(chance)
    config = LossConfig(aggregation=aggregation, kl=KlConfig(beta=0.1))
    whole = tensors(arrays)
    over = Denominators.of(whole.mask, whole.rollout_tokens)
    expected = policy_loss(whole, config).item()
    parts = 0.0
    for rows in (slice(0, 1), slice(1, 4), slice(4, None)):
        part: dict[str, Any] = {
            name: getattr(whole, name)[rows]
            for name in (
                "logp",
                "old_logp",
                "mask",
                "advantage",
                "sampler_logp",
                "ref_logp",
                "rollout_tokens",
            )
        }
        parts += policy_loss(LossInputs(**part), config, over).item()
    assert parts == pytest.approx(expected, abs=1e-12)


def test_a_rollout_of_many_sequences_weighs_as_much_as_one_of_one() -> None:
    logp = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    batch = LossInputs(
        logp=logp,
        old_logp=torch.zeros(4, 2, dtype=torch.float64),
        mask=torch.ones(4, 2, dtype=torch.float64),
        advantage=torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64),
        rollout_tokens=torch.tensor([6.0, 6.0, 6.0, 2.0], dtype=torch.float64),
    )
    loss = policy_loss(batch, LossConfig())
    (gradient,) = torch.autograd.grad(loss, logp)
    assert loss.item() == pytest.approx(0.0, abs=1e-15)
    assert gradient[:3].sum().item() == pytest.approx(-gradient[3].sum().item())


def test_equal_advantages_weigh_tokens_as_the_aggregation_says() -> None:
    """Length bias, in one picture: a sequence of 1 and one of 4 tokens."""
    mask = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)
    shares: dict[str, tuple[float, float]] = {}
    for aggregation in AGGREGATIONS:
        logp = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
        advantage = torch.ones(2, dtype=torch.float64)
        batch = LossInputs(logp, torch.zeros(2, 4, dtype=torch.float64), mask, advantage)
        config = LossConfig(aggregation=aggregation, t_max=8)
        (gradient,) = torch.autograd.grad(policy_loss(batch, config), logp)
        short, long = (-gradient).sum(dim=1).tolist()
        shares[aggregation] = (short, long)
    assert shares["token-mean"] == pytest.approx((0.2, 0.8))
    assert shares["seq-mean-token-mean"] == pytest.approx((0.5, 0.5))
    assert shares["seq-mean-token-sum"] == pytest.approx((0.5, 2.0))
    assert shares["dr"] == pytest.approx((1 / 16, 4 / 16))


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (LossConfig(tis=TisConfig(mode="truncate")), "sampler"),
        (LossConfig(kl=KlConfig(beta=0.1)), "reference"),
    ],
)
def test_a_switch_without_its_log_probabilities_is_an_error(config: LossConfig, names: str) -> None:
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=names):
        policy_loss(LossInputs(zeros, zeros, torch.ones(1, 2), torch.ones(1)), config)


def test_an_empty_interval_of_weights_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[3, 2\] is empty"):
        TisConfig(mode="mask", lo=3.0, hi=2.0)
