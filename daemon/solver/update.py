"""One GRPO step: change an adapter by a batch of rollouts, and return figures.

    choose -> advantages -> mini-batches -> [old, reference] -> loss -> gradient -> step

Sums are divided by the denominators of the whole mini-batch. So dividing it into micro-batches or
among processes changes only rounding. A step is a function of weights, optimizer state and
rollouts, without random numbers. A loss, gradient or figure that is not finite raises
`UnstableUpdate`, before the optimizer takes a step.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from peft import PeftModel
from torch import Tensor

from daemon.solver import parallel
from daemon.solver.batch import (
    BatchSelection,
    MicroBatch,
    Row,
    choose,
    denominators,
    micro_batches,
    mini_batches,
    pad,
    rows,
)
from daemon.solver.lora import reference, trainable_parameters
from daemon.solver.loss import Denominators, LossInputs, policy_loss
from daemon.solver.policy import Scores, check, check_ids, score
from daemon.solver.telemetry.metrics import StepMetrics, Tally
from daemon.solver.trajectory import Trajectory
from events.algorithm import Algorithm
from events.errors import KintsugiError
from events.jobs import OptimizerSettings


class UnstableUpdate(KintsugiError):
    """A loss, a gradient or a figure of training was not finite."""


def adamw(
    settings: OptimizerSettings, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.AdamW:
    """Return the AdamW optimizer of these parameters."""
    return torch.optim.AdamW(
        list(parameters),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )


_CACHED: Final = 2048
"""Maximum padded tokens of a micro-batch on a CPU; docs/LOG.md has the measurements."""


@dataclass(slots=True)
class _Micro:
    padded: MicroBatch
    old_logp: Tensor | None = None
    """Log-probabilities before the update; None: the updating pass computes them."""
    ref_logp: Tensor | None = None


class Learner:
    """An adapter in training. Raises IncompatibleModel for a model that it would train wrongly."""

    def __init__(
        self,
        model: PeftModel,
        algorithm: Algorithm,
        ends: frozenset[int],
        settings: OptimizerSettings | None = None,
        *,
        temperature: float = 1.0,
        micro_tokens: int = 8192,
        watch_reference: bool = False,
    ) -> None:
        check(model)
        self.model = model
        self.algorithm = algorithm
        self.ends = ends
        self.settings = settings or OptimizerSettings()
        self.temperature = temperature
        """Temperature of the sampler, which divides logits before they are normalised."""
        self.micro_tokens = micro_tokens
        """Maximum padded tokens per micro-batch: limits memory and does not change results."""
        self.needs_reference = watch_reference or algorithm.loss.kl.beta > 0
        self.parameters = trainable_parameters(model)
        parallel.begin_alike(self.parameters.values())
        self.optimizer = adamw(self.settings, self.parameters.values())
        self.steps = 0

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(iter(self.parameters.values())).device

    def choose(self, trajectories: Sequence[Trajectory]) -> BatchSelection:
        """Return which of these rollouts the learner can train on."""
        return choose(trajectories, self.algorithm, self.ends, self.temperature)

    def step(self, trajectories: Sequence[Trajectory]) -> StepMetrics:
        """Train on the groups that teach, if any. Raise UnstableUpdate, IncompatibleModel."""
        chosen = self.choose(trajectories)
        groups = self._groups(chosen)
        rollouts = [part for part in rows(chosen, self.algorithm, groups) if part]
        batch = [row for part in rollouts for row in part]
        metrics = _about(trajectories, chosen, self.steps)
        if not any(row.advantage for row in batch):
            return metrics
        check_ids(self.model, max(max(row.sequence.ids) for row in batch))
        tally = Tally(self.algorithm.loss)
        losses, norms = self._update(rollouts, tally)
        figures = tally.together().figures()
        check_figures(f"optimizer step {self.steps}", figures)
        zero = sum(row.advantage == 0.0 for row in batch) / len(batch)
        changed = {
            "step": self.steps,
            "updated": True,
            "trained_rollouts": len(rollouts),
            "sequences": len(batch),
            "tokens": sum(row.sequence.tokens for row in batch),
            "zero_advantage": zero,
            "loss": math.fsum(losses) / len(losses),
            "gradient_norm": max(norms),
            "learning_rate": self.settings.lr,
            **figures,
        }
        return StepMetrics.model_validate({**metrics.model_dump(), **changed})

    def _groups(self, chosen: BatchSelection) -> tuple[str, ...]:
        if chosen.kept.groups or self.algorithm.filter.fallback == "skip":
            return chosen.kept.groups
        return tuple(dict.fromkeys(trajectory.group for trajectory in chosen.judged))

    def _update(
        self, rollouts: Sequence[list[Row]], tally: Tally
    ) -> tuple[list[float], list[float]]:
        parts = list(mini_batches(rollouts, self.algorithm.mini_batches))
        prepared = [(self._prepare(part, len(parts)), denominators(part)) for part in parts]
        losses, norms = [], []
        for _ in range(self.algorithm.epochs):
            for micros, over in prepared:
                loss, norm = self._optimizer_step(micros, over, tally)
                losses.append(loss)
                norms.append(norm)
        return losses, norms

    def _prepare(self, part: Sequence[Row], parts: int) -> list[_Micro]:
        own = parallel.share(sorted(part, key=lambda row: -row.length))
        micros = micro_batches(own, self._micro_tokens())
        batches = [_Micro(pad(micro, self.device)) for micro in micros]
        with torch.no_grad():
            if parts * self.algorithm.epochs > 1:
                for micro in batches:
                    micro.old_logp = self._score(micro.padded).logp
            if self.needs_reference:
                with reference(self.model):
                    for micro in batches:
                        micro.ref_logp = self._score(micro.padded).logp
        return batches

    def _micro_tokens(self) -> int:
        """Return the maximum tokens of a micro-batch, lower on a CPU because of its caches."""
        return min(self.micro_tokens, _CACHED) if self.device.type == "cpu" else self.micro_tokens

    def _optimizer_step(
        self, micros: Sequence[_Micro], over: Denominators, tally: Tally
    ) -> tuple[float, float]:
        self.optimizer.zero_grad(set_to_none=True)
        losses = list(self._backward(micros, over, tally))
        # Gradients are summed before the check, so that no process stops while another waits for
        # it.
        loss = math.fsum(parallel.gather(sum(losses)))
        parallel.add_gradients(self.parameters.values())
        if not math.isfinite(loss):
            raise self._unstable(f"the loss is {loss:g}")
        norm = clip_gradient(self.parameters, self.settings.max_gradient_norm)
        if isinstance(norm, str):
            raise self._unstable(norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return loss, norm

    def _backward(
        self, micros: Sequence[_Micro], over: Denominators, tally: Tally
    ) -> Iterator[float]:
        for micro in micros:
            scores = self._score(micro.padded)
            batch = self._batch(micro, scores)
            loss = policy_loss(batch, self.algorithm.loss, over)
            loss.backward()  # type: ignore[no-untyped-call]
            tally.add(batch, scores.entropy)
            yield loss.item()

    def _batch(self, micro: _Micro, scores: Scores) -> LossInputs:
        padded = micro.padded
        return LossInputs(
            logp=scores.logp,
            old_logp=scores.logp.detach() if micro.old_logp is None else micro.old_logp,
            mask=padded.mask,
            advantage=padded.advantage,
            sampler_logp=padded.sampler_logp,
            ref_logp=micro.ref_logp,
            rollout_tokens=padded.rollout_tokens,
        )

    def _unstable(self, what: str) -> UnstableUpdate:
        self.optimizer.zero_grad(set_to_none=True)
        return UnstableUpdate(
            f"optimizer step {self.steps + 1}: {what}; the weights are as before it: lower "
            "optimizer.lr, set loss.log_ratio_clamp, or look at the rollouts of this step"
        )

    def _score(self, padded: MicroBatch) -> Scores:
        return score(self.model, padded, self.temperature)


def check_figures(when: str, figures: Mapping[str, float | None]) -> None:
    """Raise UnstableUpdate if a figure is not finite."""
    for name, value in figures.items():
        if value is not None and not math.isfinite(value):
            raise UnstableUpdate(
                f"{when}: {name} is {value:g}: training diverged; lower optimizer.lr"
            )


def clip_gradient(parameters: Mapping[str, torch.nn.Parameter], limit: float) -> float | str:
    """Clip the gradient to the norm `limit`. Return its norm before that, or a text that tells
    which gradients are not finite."""
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if torch.isfinite(norm):
        torch.nn.utils.clip_grads_with_norm_(parameters.values(), limit, norm)
        return float(norm)
    broken = [name for name, p in parameters.items() if _is_not_finite(p.grad)]
    if not broken:
        return f"the gradient's norm is {float(norm):g}"
    return f"the gradient of {len(broken)} weights is not finite, the first is {broken[0]}"


def _is_not_finite(gradient: Tensor | None) -> bool:
    return gradient is not None and not bool(torch.isfinite(gradient).all())


def _about(trajectories: Sequence[Trajectory], chosen: BatchSelection, step: int) -> StepMetrics:
    judged = chosen.judged
    count = max(len(judged), 1)
    repairs = [trajectory.repair for trajectory in judged if trajectory.repair is not None]
    return StepMetrics(
        step=step,
        updated=False,
        rollouts=len(trajectories),
        refused=len(chosen.refused),
        groups=len({trajectory.group for trajectory in judged}),
        informative=chosen.kept.informative,
        success=sum(bool(trajectory.success) for trajectory in judged) / count,
        reward=math.fsum(trajectory.reward or 0.0 for trajectory in judged) / count,
        repair=math.fsum(repairs) / len(repairs) if repairs else None,
        malformed=sum(trajectory.malformed > 0 for trajectory in judged) / count,
    )
