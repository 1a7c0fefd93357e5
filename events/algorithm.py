"""A learning algorithm as data: loss, advantages, filter. This module does not import torch.
Published algorithms are values of `Algorithm` (daemon/config/presets.py). The defaults are GRPO
with an asymmetric clip, one step per batch, and no replacement of uninformative rollouts."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from events.messages import StrictModel

Level = Literal["token", "sequence", "sequence_token", "sequence_sum"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "dr"]
RepairForm = Literal["paper", "release"]
"""The two forms of the reward of a repair (envs/reflection/reward.py)."""


class TisConfig(StrictModel):
    """Truncated importance sampling (TIS): weights for the difference between sampler and learner.
    The weight comes from exp(old - roll), the learner's log-probability less the sampler's."""

    mode: Literal["none", "truncate", "mask"] = "none"
    """`truncate` clamps the weight to [lo, hi]; `mask` drops tokens whose weight is outside."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Scope of the ratio: each token, the sequence's product, or the sequence's geometric mean."""
    lo: float = Field(default=0.0, ge=0)
    hi: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.lo > self.hi:
            raise ValueError(f"TIS keeps weights in [lo, hi]; [{self.lo:g}, {self.hi:g}] is empty")
        return self


class KlConfig(StrictModel):
    """KL penalty for the policy's distance from the reference policy."""

    estimator: Literal["k1", "k2", "k3", "k2_st_k3"] = "k3"
    """With x = logp - ref: `k1` is x, `k2` is x^2/2, `k3` is exp(-x) - 1 + x. `k2_st_k3` has the
    value of `k3` and the gradient of `k2`."""
    beta: float = Field(default=0.0, ge=0)
    unbiased: bool = False
    """Whether the estimate is weighted by the ratio to the recomputed policy."""


class LossConfig(StrictModel):
    """All options of the policy loss."""

    level: Level = "token"
    lo: Annotated[float, Field(ge=0, le=1)] = 0.2
    hi: Annotated[float, Field(ge=0)] = 0.28
    dual: Annotated[float, Field(gt=1)] | None = None
    """Dual clip: largest loss of a negative advantage, as a multiple of it; None: no bound."""
    log_ratio_clamp: Annotated[float, Field(gt=0)] | None = None
    """Largest |log ratio| of a token; None: unbounded."""
    tis: TisConfig = TisConfig()
    kl: KlConfig = KlConfig()
    aggregation: Aggregation = "seq-mean-token-mean"
    t_max: Annotated[int, Field(gt=0)] | None = None
    """For `dr`: the constant length by which sums are divided; None: the step's longest row."""


class RewardScale(StrictModel):
    """Linear change of a reward before advantages are computed: (R - offset) * factor."""

    offset: float = 0.0
    factor: float = Field(default=1.0, gt=0)


class AdvantageConfig(StrictModel):
    """How rewards become advantages: they are centred, then scaled."""

    center: Literal["group", "loo", "batch", "none"] = "group"
    """`group` subtracts the group's mean; `loo` (leave one out) multiplies that by n/(n-1); `batch`
    subtracts the batch's mean; `none` changes nothing."""
    scale: Literal["group", "batch", "none"] = "group"
    """Divisor: the standard deviation of the group's rewards, or of the batch's centred rewards."""
    ddof: Literal[0, 1] = 1
    eps: float = Field(default=1e-6, ge=0)
    weight: Literal["rollout", "token"] = "rollout"
    """Whether each rollout or each token counts once in the batch's mean and deviation."""
    reward: RewardScale = RewardScale()


class FilterConfig(StrictModel):
    """Which groups are trained on. The unshaped verdict decides, unless `on` names the reward:
    shaped rewards always differ, and a group that always fails would teach penalties alone."""

    informative: bool = True
    """Whether to drop groups in which all rollouts fail, all pass, or have equal rewards."""
    on: Literal["success", "reward"] = Field(
        default="success", exclude_if=lambda value: value == "success"
    )
    """Values that must differ in a group: verdicts, or rewards (for graded repair rewards)."""
    min_dispersion: float = Field(default=0.0, ge=0, exclude_if=lambda value: value == 0)
    """If `on` is `reward`: the range of a group's rewards must exceed this."""
    min_advantage: Annotated[float, Field(ge=0)] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    """Rollouts with |advantage| <= this are left out of loss and denominators; None: all count."""
    # A default is not written, so older specs keep their digests.
    uniform: Literal["reward", "zero"] = Field(
        default="reward", exclude_if=lambda value: value == "reward"
    )
    """Advantages of a kept group whose rollouts all have the same verdict. `reward`: from rewards,
    which differ by penalties. `zero`: 0, so only the KL penalty is trained."""
    most: float = Field(default=1.0, ge=0, le=1)
    """Groups with a share of passes above this are dropped."""
    refill: int = Field(default=0, ge=0)
    """How many more batches may be sampled to replace dropped groups."""
    fallback: Literal["skip", "original"] = "skip"
    """If no group is left after refills: `skip` the update, or update on the unfiltered batch."""

    @model_validator(mode="after")
    def _check_criterion(self) -> Self:
        if self.min_dispersion > 0 and self.on != "reward":
            raise ValueError(
                f"a dispersion of {self.min_dispersion:g} is one of rewards; set on to 'reward'"
            )
        if self.uniform == "zero" and self.on == "reward":
            raise ValueError(
                "uniform 'zero' is about verdicts; leave it out where on is 'reward': a group of "
                "equal rewards has advantages of 0"
            )
        return self


class Algorithm(StrictModel):
    """All options in which published algorithms differ, except the learning rate."""

    loss: LossConfig = LossConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    filter: FilterConfig = FilterConfig()
    repair: RepairForm = Field(default="paper", exclude_if=lambda value: value == "paper")
    """Form of the repair reward, for pools that use it."""
    overlong: Literal["mask", "keep"] = "mask"
    """Whether rollouts that were cut off in the middle of a message are trained on."""
    unit: Literal["rollout", "turn"] = "rollout"
    """A training sequence: a rollout while each prompt extends the last one, or one turn."""
    mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps per epoch over a batch of rollouts."""
    epochs: int = Field(default=1, ge=1)
