"""One GRPO step: the same however it is cut, figures that are true, and no step into NaN."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import PeftModel

from daemon.config.presets import PRESETS, preset
from daemon.solver.batch import Row, choose, pad, rows
from daemon.solver.lora import attach, reference, trainable_parameters
from daemon.solver.loss import LossInputs, policy_loss
from daemon.solver.policy import IncompatibleModel, score
from daemon.solver.telemetry.metrics import Guard, StepMetrics, TrainingAbort
from daemon.solver.trajectory import Trajectory, Turn
from daemon.solver.update import Learner, UnstableUpdate, check_figures
from events.algorithm import Algorithm, FilterConfig, KlConfig, LossConfig, TisConfig
from events.jobs import Limits, LoraSettings, OptimizerSettings
from tests.daemon.solver.tiny import (
    END,
    ENDS,
    failed_group,
    groups,
    tiny_model,
    trajectory,
    turn,
)

LORA = LoraSettings(rank=4)


def adapter(seed: int = 0, dtype: torch.dtype = torch.float64) -> PeftModel:
    """Not a fresh one: its answers differ from its base's."""
    model = attach(tiny_model(), LORA, seed).to(dtype=dtype)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model


def learner(algorithm: Algorithm | None = None, **changes: Any) -> Learner:
    return Learner(adapter(), algorithm or Algorithm(), ENDS, **changes)


def weights(model: PeftModel) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainable_parameters(model).values()])


def flat(parts: list[list[Row]]) -> list[Row]:
    return list(itertools.chain.from_iterable(parts))


def sampled_by(model: PeftModel, made: Sequence[Trajectory]) -> list[Trajectory]:
    """The same with the log-probabilities that the model itself gives, as a sampler would."""
    return [
        replace(item, turns=tuple(_scored(model, each) for each in item.turns)) for item in made
    ]


def _scored(model: PeftModel, each: Turn) -> Turn:
    whole = rows(choose([trajectory(each)], Algorithm(), ENDS), Algorithm(), ["g"])[0]
    with torch.no_grad():
        found = score(model, pad(whole)).logp[0]
    return replace(each, logprobs=tuple(found[-len(each.completion_ids) :].tolist()))


@pytest.mark.parametrize("name", PRESETS)
def test_one_micro_batch_and_many_give_the_same_step(name: str) -> None:
    made = sampled_by(adapter(), groups(1, count=2))
    results = []
    for micro_tokens in (100_000, 60):
        one = learner(preset(name), micro_tokens=micro_tokens)
        figures = one.step(made)
        assert figures.updated
        results.append((weights(one.model), figures))
    (expected, whole), *others = results
    for found, parts in others:
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
        assert parts.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-6)


def test_the_gradient_is_that_of_one_batch_and_one_backward_pass() -> None:
    """Against the loss of everything at once, without mini-batches, clipping or an optimizer."""
    algorithm = Algorithm(loss=LossConfig(kl=KlConfig(beta=0.1), tis=TisConfig(mode="truncate")))
    made = sampled_by(adapter(), groups(2))
    model = adapter()
    chosen = choose(made, algorithm, ENDS)
    padded = pad(flat(rows(chosen, algorithm, chosen.kept.groups)))
    with torch.no_grad(), reference(model):
        ref = score(model, padded).logp
    logp = score(model, padded).logp
    batch = LossInputs(
        logp,
        logp.detach(),
        padded.mask,
        padded.advantage,
        padded.sampler_logp,
        ref,
        padded.rollout_tokens,
    )
    loss = policy_loss(batch, algorithm.loss)
    gradient = torch.autograd.grad(loss, list(trainable_parameters(model).values()))
    norm = torch.cat([part.flatten() for part in gradient]).norm().item()
    figures = learner(algorithm, micro_tokens=50).step(made)
    assert figures.loss == pytest.approx(loss.item(), abs=1e-9)
    assert figures.gradient_norm == pytest.approx(norm, rel=1e-6)


def test_old_log_probabilities_are_those_of_the_update_itself() -> None:
    """While the weights stand still the ratio is 1, whether they were recomputed or not."""
    made = groups(3)
    for algorithm in (Algorithm(), Algorithm(epochs=2), Algorithm(mini_batches=2)):
        figures = learner(algorithm, settings=OptimizerSettings(lr=1e-12)).step(made)
        assert figures.ratio_mean == pytest.approx(1.0, abs=1e-6)
        assert figures.ratio_max == pytest.approx(1.0, abs=1e-6)


def test_a_second_epoch_moves_the_ratio_and_clips() -> None:
    algorithm = Algorithm(epochs=6, loss=LossConfig(lo=0.01, hi=0.01))
    one = learner(algorithm, settings=OptimizerSettings(lr=0.02))
    figures = one.step(groups(3))
    assert figures.step == one.steps == 6
    assert figures.ratio_max > 1.05
    assert figures.clipped_low > 0
    assert figures.clipped_high > 0


def test_a_group_of_one_verdict_is_kept_for_its_divergence_alone() -> None:
    """Its penalties change no weight; its distance from the reference does."""
    mixed, failed = groups(3, count=1), failed_group(penalty=0.05)

    def trained(batch: list[Trajectory], beta: float, *, informative: bool) -> torch.Tensor:
        algorithm = Algorithm(
            loss=LossConfig(kl=KlConfig(estimator="k2", beta=beta), aggregation="dr", t_max=100),
            filter=FilterConfig(informative=informative, uniform="zero"),
        )
        one = learner(algorithm, settings=OptimizerSettings(lr=0.01))
        assert one.step(batch).updated
        return weights(one.model)

    penalised = [
        trained([*mixed, *failed_group(penalty)], 0.0, informative=False) for penalty in (0, 0.5)
    ]
    torch.testing.assert_close(penalised[0], penalised[1], atol=0, rtol=0)
    held = trained([*mixed, *failed], 1.0, informative=False)
    assert (held - trained(mixed, 1.0, informative=True)).abs().max() > 1e-4


def test_a_batch_of_one_verdict_alone_changes_nothing() -> None:
    algorithm = Algorithm(
        loss=LossConfig(kl=KlConfig(estimator="k2", beta=0.1)),
        filter=FilterConfig(informative=False, uniform="zero"),
    )
    one = learner(algorithm)
    before = weights(one.model)
    assert not one.step(failed_group(penalty=0.05)).updated
    torch.testing.assert_close(weights(one.model), before, atol=0, rtol=0)


def test_mini_batches_are_optimizer_steps() -> None:
    assert learner(Algorithm(mini_batches=3)).step(groups(3)).step == 3


def test_a_step_makes_what_passed_likelier_and_what_failed_unlikelier() -> None:
    made = groups(4)
    one = learner(settings=OptimizerSettings(lr=0.01))

    def mean_logp(success: bool) -> float:
        chosen = [item for item in made if item.success is success]
        padded = pad(flat(rows(choose(chosen, Algorithm(), ENDS), Algorithm(), ["g0"])))
        with torch.no_grad():
            return float(score(one.model, padded).logp.sum())

    passed, failed = mean_logp(True), mean_logp(False)
    one.step(made)
    assert mean_logp(True) - passed > mean_logp(False) - failed


@pytest.mark.parametrize(
    "made",
    [
        [],
        [replace(item, success=True, reward=1.0) for item in groups(1)],
        [replace(item, success=False, reward=-0.1 * n) for n, item in enumerate(groups(1))],
        [replace(item, group=str(n)) for n, item in enumerate(groups(1))],
        [replace(item, success=None) for item in groups(1)],
    ],
    ids=["empty", "all pass", "all fail", "groups of one", "unjudged"],
)
def test_a_batch_that_teaches_nothing_changes_nothing(made: list[Trajectory]) -> None:
    one = learner()
    before = weights(one.model)
    figures = one.step(made)
    assert not figures.updated
    assert figures.step == one.steps == 0
    assert figures.informative == 0.0
    assert figures.refused == sum(item.success is None for item in made)
    assert torch.equal(weights(one.model), before)


def test_the_fallback_trains_on_the_unfiltered_batch() -> None:
    made = [replace(item, success=False, reward=-0.1 * n) for n, item in enumerate(groups(1))]
    algorithm = Algorithm(filter=FilterConfig(fallback="original"))
    assert learner(algorithm).step(made).updated


def test_sampler_and_learner_agree_where_the_sampler_is_the_learner() -> None:
    algorithm = Algorithm(loss=LossConfig(tis=TisConfig(mode="truncate")))
    figures = learner(algorithm).step(sampled_by(adapter(), groups(5)))
    assert figures.mismatch_mean < 1e-6
    assert figures.mismatch_max < 1e-5
    assert figures.tis_clipped == 0.0
    assert figures.tis_ess == pytest.approx(1.0)


def test_a_sampler_with_another_arithmetic_is_seen() -> None:
    def shifted(each: Turn) -> Turn:
        return replace(each, logprobs=tuple(logprob - 0.9 for logprob in each.logprobs))

    made = [
        replace(item, turns=tuple(shifted(each) for each in item.turns))
        for item in sampled_by(adapter(), groups(5))
    ]
    algorithm = Algorithm(loss=LossConfig(tis=TisConfig(mode="truncate", hi=2.0)))
    figures = learner(algorithm).step(made)
    assert figures.mismatch_mean == pytest.approx(0.9, abs=1e-5)
    assert figures.mismatch_max == pytest.approx(0.9, abs=1e-5)
    assert figures.tis_clipped == 1.0


def test_the_divergence_from_the_reference_is_watched_when_asked() -> None:
    made = groups(6)
    assert learner().step(made).kl is None
    kl = learner(watch_reference=True).step(made).kl
    assert kl is not None
    assert kl > 0
    fresh = Learner(attach(tiny_model(), LORA, 0), Algorithm(), ENDS, watch_reference=True)
    assert fresh.step(made).kl == pytest.approx(0.0, abs=1e-6)


def test_figures_count_what_was_trained() -> None:
    made = groups(7, count=2)
    made += [replace(item, group="easy", success=True, reward=1.0) for item in groups(8, count=1)]
    made += [replace(groups(9)[0], success=None)]
    figures = learner().step(made)
    assert (figures.rollouts, figures.refused, figures.groups) == (13, 1, 3)
    assert figures.informative == pytest.approx(2 / 3)
    assert figures.success == pytest.approx(8 / 12)
    assert figures.trained_rollouts == 8
    assert figures.sequences == 8
    assert figures.tokens == sum(item.tokens for item in made[:8])
    assert figures.zero_advantage == 0.0
    assert 0 < figures.entropy < 3.5


def test_gradients_are_clipped_to_their_limit() -> None:
    """With plain SGD steps would differ; AdamW's first step does not, so look at the gradient."""
    one = learner(settings=OptimizerSettings(max_gradient_norm=1e-3))
    seen: list[float] = []
    one.optimizer.register_step_pre_hook(
        lambda *_: seen.append(
            torch.cat([p.grad.flatten() for p in one.parameters.values() if p.grad is not None])
            .norm()
            .item()
        )
    )
    figures = one.step(groups(10))
    assert figures.gradient_norm > 1e-3
    assert seen == pytest.approx([1e-3], rel=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_stops_before_the_weights_change(value: float) -> None:
    one = learner()
    before, state = weights(one.model), len(one.optimizer.state)
    name, parameter = next(iter(one.parameters.items()))
    parameter.register_hook(lambda gradient: gradient * value)  # type: ignore[no-untyped-call]
    with pytest.raises(UnstableUpdate, match="step 1: the gradient of 1 weights") as raised:
        one.step(groups(11))
    assert name in str(raised.value)
    assert torch.equal(weights(one.model), before)
    assert len(one.optimizer.state) == state
    assert all(p.grad is None for p in one.parameters.values())
    assert one.steps == 0


def test_a_loss_that_is_not_finite_stops_before_the_weights_change() -> None:
    one = learner()
    with torch.no_grad():
        dict(one.model.named_parameters())["base_model.model.model.norm.weight"][0] = float("nan")
    before = weights(one.model)
    with pytest.raises(UnstableUpdate, match="the loss is nan"):
        one.step(groups(11))
    assert torch.equal(weights(one.model), before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_not_finite_is_named_with_the_remedy(value: float) -> None:
    check_figures("step 3", {"entropy": 1.0, "kl": None})
    with pytest.raises(UnstableUpdate, match=r"step 3: kl is (nan|inf): .*lower optimizer\.lr"):
        check_figures("step 3", {"entropy": 1.0, "kl": value})


def test_rollouts_of_another_model_are_refused() -> None:
    strange = [
        trajectory(turn([5], [40, END]), rollout="a"),
        trajectory(turn([5], [6, END]), rollout="b", success=False, reward=0.0),
    ]
    with pytest.raises(IncompatibleModel, match="token id 40"):
        learner().step(strange)


def test_a_model_that_would_be_trained_wrongly_is_refused() -> None:
    model = attach(tiny_model(attention_dropout=0.1), LORA, 0)
    with pytest.raises(IncompatibleModel, match="attention_dropout"):
        Learner(model, Algorithm(), ENDS)


def test_the_same_rollouts_give_the_same_weights() -> None:
    found = []
    for _ in range(2):
        one = learner(Algorithm(epochs=2, mini_batches=2))
        for seed in range(3):
            one.step(groups(seed))
        found.append(weights(one.model))
    assert torch.equal(*found)


def figures(step: int, **changes: Any) -> StepMetrics:
    fields: dict[str, Any] = {
        "step": step,
        "updated": True,
        "rollouts": 64,
        "refused": 0,
        "groups": 8,
        "informative": 0.5,
        "success": 0.5,
        "reward": 0.5,
        "malformed": 0.05,
        "entropy": 0.06,
        "kl": 0.01,
    }
    return StepMetrics(**(fields | changes))


def after(*steps: dict[str, Any], limits: Limits | None = None) -> Guard:
    guard = Guard(limits=limits or Limits())
    for number, changes in enumerate([{}, *steps]):
        guard = guard.after(figures(number + 1, **changes))
    return guard


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"kl": 0.31}, "KL from the reference is 0.31"),
        ({"entropy": 0.19}, "entropy is 0.19, it began at 0.06"),
        ({"entropy": 0.019}, "entropy is 0.019"),
        ({"malformed": 0.13}, "13.0% of rollouts have malformed calls, it began at 5.0%"),
    ],
)
def test_a_limit_that_is_broken_for_three_steps_aborts(changes: dict[str, Any], names: str) -> None:
    after(changes, changes, {}, changes, changes)
    with pytest.raises(TrainingAbort, match=names):
        after(changes, changes, changes)


@pytest.mark.parametrize("ratio", [0.79, 1.26])
def test_a_mean_ratio_out_of_bounds_aborts_at_once(ratio: float) -> None:
    with pytest.raises(TrainingAbort, match=f"step 2: the mean ratio .* is {ratio}"):
        after({"ratio_mean": ratio})


def test_every_limit_can_be_switched_off() -> None:
    none = Limits(
        kl=None, ratio_low=None, ratio_high=None, entropy_factor=None, malformed_factor=None
    )
    wild = {"kl": 9.0, "ratio_mean": 9.0, "entropy": 9.0, "malformed": 1.0}
    after(*itertools.repeat(wild, 5), limits=none)


def test_a_guard_goes_on_from_what_was_stored() -> None:
    guard = after({"kl": 1.0}, {"kl": 1.0})
    stored = Guard.model_validate_json(guard.model_dump_json())
    with pytest.raises(TrainingAbort, match="KL"):
        stored.after(figures(4, kl=1.0))


def test_a_step_without_an_update_is_no_evidence() -> None:
    guard = after({"kl": 1.0}, {"kl": 1.0})
    assert guard.after(figures(4, kl=1.0, updated=False)) == guard
