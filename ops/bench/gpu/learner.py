"""The learner's step beside the plainest one of PyTorch and PEFT, on the same rows and adapter."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from peft import PeftModel

from daemon.solver.batch import MicroBatch, Row, pad
from daemon.solver.lora import trainable_parameters
from daemon.solver.update import Learner
from events.algorithm import Algorithm, LossConfig
from events.jobs import OptimizerSettings
from ops.bench.gpu.batch import Batch, make_batch
from ops.bench.gpu.models import (
    Shape,
    add_adapters,
    count_parameters,
    make_model,
    read_memory,
    read_peak,
    release,
    synchronize,
)
from ops.bench.learner.protocol import BETAS, CLIP, EPS, NORM

LR: Final = 1e-4
MICRO_TOKENS: Final = (8192, 4096, 2048, 1024)
"""Padded tokens of the learner's micro-batches, the default first; the next where memory ends."""
MICRO_ROWS: Final = (16, 8, 4, 2)
"""Rows of the plain step's micro-batches; all that fit are measured."""

Step = Callable[[], float]
"""Takes an optimizer step; returns the gradient norm before clipping."""


def measure_learner(
    shape: Shape, device: torch.device, dtype: torch.dtype, steps: int
) -> dict[str, Any]:
    """Return the written tokens per second and the memory of both sides, and the gradient
    norms of their first steps."""
    batch = make_batch(shape.rows, shape.conversations, shape.vocabulary)
    model, _ = add_adapters(make_model(shape, device, dtype), 1)
    bench = _Bench(model.train(), batch, device, steps)
    load = {"allocated_gib": read_memory(device), "peak_gib": read_peak(device)}
    ours = next(bench.measure("micro_tokens", MICRO_TOKENS, bench.make_learner))
    sizes = [size for size in MICRO_ROWS if size <= shape.rows]
    tried = list(bench.measure("micro_rows", sizes, bench.make_plain))
    peer = max(tried, key=lambda figures: figures["tokens_per_second"])
    return {
        "parameters": count_parameters(model),
        "rows": len(batch.rows),
        "tokens": {"written": batch.written, "all": batch.read},
        "longest_row": max(row.length for row in batch.rows),
        "load": load,
        "ours": ours,
        "peer": peer,
        "peer_tried": tried,
        "tokens_per_second_ratio": _divide(ours["tokens_per_second"], peer["tokens_per_second"]),
        "peak_ratio": _divide(ours["peak_gib"], peer["peak_gib"]),
        "gradient_norm_ratio": _divide(ours["gradient_norm"], peer["gradient_norm"]),
    }


class _Bench:
    """A model, its adapter as it was at first, and a batch."""

    def __init__(self, model: PeftModel, batch: Batch, device: torch.device, steps: int) -> None:
        self.model = model
        self.batch = batch
        self.device = device
        self.steps = steps
        self.parameters = trainable_parameters(model)
        self.first = {name: p.detach().clone() for name, p in self.parameters.items()}

    def make_learner(self, micro_tokens: int) -> Step:
        """Return the step of the learner, as a job takes it."""
        loss = LossConfig(lo=CLIP[0], hi=CLIP[1], aggregation="seq-mean-token-mean")
        settings = OptimizerSettings(lr=LR, betas=BETAS, eps=EPS, max_gradient_norm=NORM)
        learner = Learner(
            self.model, Algorithm(loss=loss), self.batch.ends, settings, micro_tokens=micro_tokens
        )

        return lambda: learner.step(self.batch.rollouts).gradient_norm

    def make_plain(self, micro_rows: int) -> Step:
        """Return the plain step; its batch is padded before."""
        return PlainTrainer(self.model, self.batch.rows, micro_rows, self.device).step

    def measure(
        self, name: str, sizes: Sequence[int], make: Callable[[int], Step]
    ) -> Iterator[dict[str, Any]]:
        """Yield figures for each micro-batch size that memory is enough for, largest first. Raises
        torch.OutOfMemoryError where it is enough for none."""
        fits = False
        for size in sizes:
            figures = self._try(make, size)
            fits = fits or figures is not None
            if figures is not None:
                yield {name: size, **figures}
        if not fits:
            raise torch.OutOfMemoryError(f"no {name} of {sizes} fits; make the batch smaller")

    def _try(self, make: Callable[[int], Step], size: int) -> dict[str, Any] | None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.first[name])
        try:
            return self._measure_step(make(size))
        except torch.OutOfMemoryError:
            return None
        finally:
            self.model.zero_grad(set_to_none=True)
            release(self.device)

    def _measure_step(self, step: Step) -> dict[str, Any]:
        release(self.device)
        before = read_memory(self.device)
        norm = step()
        seconds = [self._time(step) for _ in range(self.steps)]
        median = statistics.median(seconds)
        return {
            "tokens_per_second": round(self.batch.written / median, 1),
            "all_tokens_per_second": round(self.batch.read / median, 1),
            "step_seconds": [round(each, 4) for each in seconds],
            "before_gib": before,
            "peak_gib": read_peak(self.device),
            "gradient_norm": norm,
        }

    def _time(self, step: Step) -> float:
        synchronize(self.device)
        start = time.perf_counter()
        step()
        synchronize(self.device)
        return time.perf_counter() - start


class PlainTrainer:
    """A training step as a tutorial of PEFT writes it: padded rows in their order, the model's own
    forward, all logits, log-softmax in float32, GRPO's clipped loss, AdamW."""

    def __init__(
        self, model: PeftModel, rows: Sequence[Row], micro_rows: int, device: torch.device
    ) -> None:
        self.model = model
        self.rows = len(rows)
        self.parts = [
            pad(rows[at : at + micro_rows], device) for at in range(0, len(rows), micro_rows)
        ]
        self.parameters = list(trainable_parameters(model).values())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=0.0
        )

    def step(self) -> float:
        """Take an optimizer step; return the gradient norm before clipping."""
        for part in self.parts:
            self._backward(part)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def _backward(self, part: MicroBatch) -> None:
        output: Any = self.model(input_ids=part.ids, attention_mask=part.attention, use_cache=False)
        chances = output.logits[:, :-1].float().log_softmax(-1)
        logp = chances.gather(-1, part.ids[:, 1:, None]).squeeze(-1)
        ratio, advantage = (logp - logp.detach()).exp(), part.advantage[:, None]
        clipped = ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
        each = -torch.minimum(ratio * advantage, clipped * advantage) * part.mask
        loss: torch.Tensor = (each.sum(-1) / part.mask.sum(-1)).sum() / self.rows
        loss.backward()  # type: ignore[no-untyped-call]


def _divide(own: float | None, other: float | None) -> float | None:
    return round(own / other, 4) if own is not None and other else None
