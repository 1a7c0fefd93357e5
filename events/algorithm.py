"""A learning algorithm as data: loss, advantages, filter. Needs no torch. Published algorithms are
values of `Algorithm` (daemon/config/presets.py). The defaults are GRPO with an asymmetric clip, one
step per batch, and no replacement of uninformative rollouts."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from events.messages import StrictModel

Level = Literal["token", "sequence", "sequence_token", "sequence_sum"]
Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "dr"]
RepairForm = Literal["paper", "release"]
"""The two forms of the reward of a repair (envs/reflection/reward.py)."""


class TisConfig(StrictModel):
    """Correction for the difference between sampler and learner: w from exp(old - roll)."""

    mode: Literal["none", "truncate", "mask"] = "none"
    """`truncate` clamps the weight to [lo, hi]; `mask` drops what is outside."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio of each token, of the whole sequence (product), or its geometric mean."""
    lo: float = Field(default=0.0, ge=0)
    hi: float = Field(default=2.0, gt=0)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.lo > self.hi:
            raise ValueError(f"TIS keeps weights in [lo, hi]; [{self.lo:g}, {self.hi:g}] is empty")
        return self


class KlConfig(StrictModel):
    """Penalty for leaving the reference policy."""

    estimator: Literal["k1", "k2", "k3", "k2_st_k3"] = "k3"
    """For x = logp - ref: x; x^2/2; exp(-x) - 1 + x; that of `k3` with the gradient of `k2`."""
    beta: float = Field(default=0.0, ge=0)
    unbiased: bool = False
    """Whether the estimate is weighted by the ratio to the recomputed policy."""


class LossConfig(StrictModel):
    """Every switch of the loss."""

    level: Level = "token"
    lo: Annotated[float, Field(ge=0, le=1)] = 0.2
    hi: Annotated[float, Field(ge=0)] = 0.28
    dual: Annotated[float, Field(gt=1)] | None = None
    """Bound of the loss of a negative advantage, in multiples of it; None: no bound."""
    log_ratio_clamp: Annotated[float, Field(gt=0)] | None = None
    """Largest |log ratio| of a token; None: unbounded."""
    tis: TisConfig = TisConfig()
    kl: KlConfig = KlConfig()
    aggregation: Aggregation = "seq-mean-token-mean"
    t_max: Annotated[int, Field(gt=0)] | None = None
    """For `dr`: the constant length that divides sums; None: the longest row of the step."""


class RewardScale(StrictModel):
    """Change of a reward before it is compared with others: (R - offset) * factor."""

    offset: float = 0.0
    factor: float = Field(default=1.0, gt=0)


class AdvantageConfig(StrictModel):
    """From rewards to advantages: centred, then scaled."""

    center: Literal["group", "loo", "batch", "none"] = "group"
    """Less the group's mean; n/(n-1) times that (leave one out); less the batch's mean; as is."""
    scale: Literal["group", "batch", "none"] = "group"
    """Divisor: the standard deviation of the group's rewards, or of all centred ones."""
    ddof: Literal[0, 1] = 1
    eps: float = Field(default=1e-6, ge=0)
    weight: Literal["rollout", "token"] = "rollout"
    """Unit that counts once in the batch's mean and deviation."""
    reward: RewardScale = RewardScale()


class FilterConfig(StrictModel):
    """Groups to train on, by the unshaped verdict unless `on` names the reward. Shaped rewards
    differ in every group, and one that always fails would teach its penalties alone."""

    informative: bool = True
    """Whether uninformative groups are dropped: all fail, all pass, or rewards do not differ."""
    on: Literal["success", "reward"] = Field(
        default="success", exclude_if=lambda value: value == "success"
    )
    """Values that must differ in a group: verdicts, or rewards graded by themselves (repairs)."""
    min_dispersion: float = Field(default=0.0, ge=0, exclude_if=lambda value: value == 0)
    """With rewards: the range of a group's rewards must exceed this."""
    min_advantage: Annotated[float, Field(ge=0)] | None = Field(
        default=None, exclude_if=lambda value: value is None
    )
    """Rollouts with an advantage up to this size leave loss and denominators; None: all stay."""
    # Left out of what is written at its default: specs and their digests stay as they were.
    uniform: Literal["reward", "zero"] = Field(
        default="reward", exclude_if=lambda value: value == "reward"
    )
    """Advantages of a kept group of one verdict: by its rewards, which differ by penalties; or 0,
    so that only the divergence from the reference is trained."""
    most: float = Field(default=1.0, ge=0, le=1)
    """Groups that pass more often than this are dropped."""
    refill: int = Field(default=0, ge=0)
    """How many more batches may be sampled in place of what was dropped."""
    fallback: Literal["skip", "original"] = "skip"
    """Without a group after that: no update, or one on the unfiltered batch."""

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
    """All differences of published algorithms, but for the learning rate."""

    loss: LossConfig = LossConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    filter: FilterConfig = FilterConfig()
    repair: RepairForm = Field(default="paper", exclude_if=lambda value: value == "paper")
    """Form of the reward in pools that are rewarded for repairs."""
    overlong: Literal["mask", "keep"] = "mask"
    """Whether rollouts that were cut off in the middle of a message are trained on."""
    unit: Literal["rollout", "turn"] = "rollout"
    """Unit of a sequence: a rollout while its prompts extend each other, or each turn."""
    mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps per batch of rollouts and epoch."""
    epochs: int = Field(default=1, ge=1)
