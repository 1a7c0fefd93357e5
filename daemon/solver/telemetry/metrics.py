"""Figures of a learner's optimizer step, and limits that stop training.

`Tally` sums over micro-batches, `StepMetrics` has the figures, and `Guard` raises if a limit is
exceeded (KL, ratio, entropy, malformed calls). A limit that is None is off.
"""

import math

import torch
from torch import Tensor

from daemon.solver import parallel
from daemon.solver.loss import LossInputs, estimate, log_change, log_ratio, sampler_ratio
from events.algorithm import KlConfig, LossConfig
from events.errors import KintsugiError
from events.jobs import Limits
from events.messages import StrictModel


class TrainingAbort(KintsugiError):
    """A limit was exceeded; the adapter of this job is not saved."""


class StepMetrics(StrictModel):
    """Figures of one step. Means over tokens cover the trained tokens only."""

    step: int
    updated: bool
    """Whether weights changed; False if no group had anything to learn from."""
    rollouts: int
    refused: int
    groups: int
    informative: float
    """Share of groups with both passed and failed rollouts."""
    success: float
    """Share of trainable rollouts that passed; if only the repair counts, share that repaired."""
    reward: float
    """Mean shaped reward of trainable rollouts."""
    repair: float | None = None
    """Mean repair reward of trainable rollouts that have one; None if none has."""
    malformed: float
    """Share of trainable rollouts with a malformed call."""
    trained_rollouts: int = 0
    sequences: int = 0
    """Number of trained sequences; more than rollouts if a template breaks prefixes."""
    tokens: int = 0
    zero_advantage: float = 0.0
    """Share of trained sequences whose advantage is exactly 0."""
    loss: float = 0.0
    gradient_norm: float = 0.0
    """Largest gradient norm of the step's mini-batches, before clipping."""
    learning_rate: float = 0.0
    ratio_mean: float = 1.0
    ratio_max: float = 1.0
    clipped_low: float = 0.0
    """Share of tokens whose loss was clipped at the ratio's lower bound."""
    clipped_high: float = 0.0
    mismatch_mean: float = 0.0
    """Mean |old_logp - sampler_logp| in nats: difference of the two arithmetics."""
    mismatch_max: float = 0.0
    tis_clipped: float = 0.0
    """Share of tokens whose importance weight was truncated or masked."""
    tis_ess: float = 1.0
    """Effective sample size as a share of n: (sum w)^2 / (n sum w^2)."""
    kl: float | None = None
    """Divergence from the reference by estimator k3; None if not computed."""
    entropy: float = 0.0


class Tally:
    """Sums over the micro-batches of a step."""

    def __init__(self, config: LossConfig) -> None:
        self.config = config
        self.sums: dict[str, float] = {}
        self.largest: dict[str, float] = {"ratio": 0.0, "mismatch": 0.0}
        self.has_reference = False

    def add(self, batch: LossInputs, entropy: Tensor) -> None:
        """Add a micro-batch to the sums."""
        mask = batch.mask.to(batch.logp.dtype)
        on = mask > 0
        if not on.any():
            return
        with torch.no_grad():
            self._add("tokens", mask[on])
            self._add("entropy", entropy[on])
            self._add_ratio(batch, mask, on)
            self._add_sampler(batch, mask, on)
            self._add_reference(batch, on)

    def _add_ratio(self, batch: LossInputs, mask: Tensor, on: Tensor) -> None:
        change = log_change(batch, self.config)
        ratio = log_ratio(batch.logp, change, mask, self.config.level).exp()[on]
        sign = batch.advantage[:, None].expand_as(mask)[on]
        self._add("ratio", ratio)
        self._add("low", (ratio < 1 - self.config.lo) & (sign < 0))
        self._add("high", (ratio > 1 + self.config.hi) & (sign > 0))
        self.largest["ratio"] = max(self.largest["ratio"], float(ratio.max()))

    def _add_sampler(self, batch: LossInputs, mask: Tensor, on: Tensor) -> None:
        if batch.sampler_logp is None:
            return
        gap = (batch.old_logp - batch.sampler_logp)[on].abs()
        self._add("mismatch", gap)
        self.largest["mismatch"] = max(self.largest["mismatch"], float(gap.max()))
        raw = sampler_ratio(batch, mask, self.config.tis)[on]
        outside = (raw < self.config.tis.lo) | (raw > self.config.tis.hi)
        weight = raw.clamp(self.config.tis.lo, self.config.tis.hi)
        if self.config.tis.mode == "mask":
            weight = torch.where(outside, 0.0, raw)
        self._add("cut", outside)
        self._add("weight", weight)
        self._add("square", weight.square())

    def _add_reference(self, batch: LossInputs, on: Tensor) -> None:
        if batch.ref_logp is None:
            return
        self.has_reference = True
        self._add("kl", estimate((batch.logp - batch.ref_logp)[on], KlConfig(estimator="k3")))

    def _add(self, name: str, values: Tensor) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(values.double().sum())

    def together(self) -> "Tally":
        """Return the sums over all processes."""
        total = Tally(self.config)
        for sums, largest, has_reference in parallel.gather(
            (self.sums, self.largest, self.has_reference)
        ):
            for name, value in sums.items():
                total.sums[name] = total.sums.get(name, 0.0) + value
            for name, value in largest.items():
                total.largest[name] = max(total.largest[name], value)
            total.has_reference |= has_reference
        return total

    def figures(self) -> dict[str, float | None]:
        """Return the `StepMetrics` fields that are computed from tokens."""
        if not self.sums:
            return {}
        values: dict[str, float | None] = {
            "ratio_mean": self._mean("ratio"),
            "ratio_max": self.largest["ratio"],
            "clipped_low": self._mean("low"),
            "clipped_high": self._mean("high"),
            "mismatch_mean": self._mean("mismatch"),
            "mismatch_max": self.largest["mismatch"],
            "entropy": self._mean("entropy"),
            "kl": self._mean("kl") if self.has_reference else None,
        }
        if self.config.tis.mode != "none":
            values |= {"tis_clipped": self._mean("cut"), "tis_ess": self._effective()}
        return values

    def _mean(self, name: str) -> float:
        return self.sums.get(name, 0.0) / self.sums["tokens"]

    def _effective(self) -> float:
        square = self.sums["square"]
        return self.sums["weight"] ** 2 / (self.sums["tokens"] * square) if square else 0.0


class Guard(StrictModel):
    """The limits and how close a job is to them; a resumed job stores and reads this."""

    limits: Limits = Limits()
    first_entropy: float | None = None
    """Mean entropy in the first step that changed weights."""
    first_malformed: float | None = None
    kl_steps: int = 0
    """Number of consecutive steps with KL above its limit."""
    entropy_steps: int = 0
    malformed_steps: int = 0

    def after(self, step: StepMetrics) -> "Guard":
        """Return the guard with `step` counted. Raise TrainingAbort if a limit is exceeded."""
        if not step.updated:
            return self
        self._check_ratio(step)
        entropy = step.entropy if self.first_entropy is None else self.first_entropy
        malformed = step.malformed if self.first_malformed is None else self.first_malformed
        following = Guard(
            limits=self.limits,
            first_entropy=entropy,
            first_malformed=malformed,
            kl_steps=self.kl_steps + 1 if self._far(step) else 0,
            entropy_steps=self.entropy_steps + 1 if self._strange(step.entropy, entropy) else 0,
            malformed_steps=self.malformed_steps + 1 if self._worse(step, malformed) else 0,
        )
        following._check_streaks(step)
        return following

    def _far(self, step: StepMetrics) -> bool:
        return self.limits.kl is not None and step.kl is not None and step.kl > self.limits.kl

    def _strange(self, entropy: float, first: float) -> bool:
        factor = self.limits.entropy_factor
        return factor is not None and not first / factor <= entropy <= first * factor

    def _worse(self, step: StepMetrics, first: float) -> bool:
        factor = self.limits.malformed_factor
        if factor is None:
            return False
        return step.malformed > factor * first + self.limits.malformed_margin

    def _check_ratio(self, step: StepMetrics) -> None:
        low, high = self.limits.ratio_low or 0.0, self.limits.ratio_high or math.inf
        if not low <= step.ratio_mean <= high:
            raise TrainingAbort(
                f"step {step.step}: the mean ratio to the policy before the update is "
                f"{step.ratio_mean:g}, outside [{low:g}, {high:g}]; lower the learning rate"
            )

    def _check_streaks(self, step: StepMetrics) -> None:
        streaks = {
            f"KL from the reference is {step.kl or 0.0:g}": self.kl_steps,
            f"entropy is {step.entropy:g}, it began at {self.first_entropy:g}": self.entropy_steps,
            f"{step.malformed:.1%} of rollouts have malformed calls, "
            f"it began at {self.first_malformed:.1%}": self.malformed_steps,
        }
        for what, steps in streaks.items():
            if steps >= self.limits.patience:
                raise TrainingAbort(
                    f"step {step.step}: {what}, beyond its limit for {steps} steps; lower the "
                    "learning rate, raise the KL penalty, or raise the limit"
                )
