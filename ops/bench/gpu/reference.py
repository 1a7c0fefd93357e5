"""The reference policy on a device and on a processor, in float32: the same answers, the same
training."""

import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from daemon.adapters.directory import verify
from daemon.adapters.fingerprint import EXACT, Expectation, distance
from daemon.engine.cache import Cache
from daemon.engine.chat import Chat
from daemon.engine.fingerprint import probe_model
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.lora import trainable_parameters
from daemon.solver.update import Learner
from events.algorithm import Algorithm, LossConfig
from events.jobs import OptimizerSettings
from ops.bench.gpu.batch import Batch, make_batch
from ops.bench.gpu.engine import Disagreement
from ops.bench.gpu.models import add_adapters
from ops.bench.learner.protocol import BETAS, CLIP, EPS, LR, NORM
from ops.random_adapters import SPREAD, Maker

STEPS: Final = 2
"""Learner's steps that are compared."""
APART: Final = 0.01
"""The most that an adapter may differ after them, as a share of how far it went. AdamW's first
steps have the size of the learning rate however small a gradient is, which magnifies rounding: two
ways to compute the forward pass on one CPU differ by 0.00004."""

_CPU: Final = torch.device("cpu")


def check_answers(device: torch.device) -> dict[str, Any]:
    """Return how far base and adapter on the device are from what a processor computes, in nats: by
    transformers' forward (root mean square over a fingerprint) and by the engine's (largest over
    the vocabulary). Raises Disagreement above `EXACT`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Maker(CHECKPOINT).write(Path(name) / "adapter", SPREAD)
        expected = verify(folder).fingerprint
        assert expected is not None, "an adapter that Maker wrote has a fingerprint"
        seen = _probe(folder, device)
        ours = [_read_engine(folder, place, expected) for place in (_CPU, device)]
    figures = {
        "base": distance(expected.base, seen.base),
        "adapter": distance(expected.adapter, seen.adapter),
        "adapter_from_base": distance(expected.adapter, seen.base),
        "engine": float((ours[0] - ours[1]).abs().max()),
    }
    for part in ("base", "adapter", "engine"):
        if not figures[part] <= EXACT:
            raise Disagreement(f"{part}: {figures[part]:g} nats from a CPU's, above {EXACT:g}")
    return figures


def check_training(device: torch.device) -> dict[str, Any]:
    """Return how far gradient norms and adapter are from those of a processor after the same steps
    on the same batch. Raises Disagreement where the adapter is further than `APART`."""
    batch = make_batch(8, 2, len(Chat(CHECKPOINT).tokenizer))
    own, other = (_Training(batch, place) for place in (_CPU, device))
    gap, way = own.last - other.last, own.last - own.first
    share = float(gap.norm() / way.norm())
    if not share <= APART:
        raise Disagreement(
            f"after {STEPS} steps the adapters are {share:g} of their way apart, above {APART:g}"
        )
    return {
        "steps": STEPS,
        "gradient_norms": [own.norms, other.norms],
        "adapter_gap": share,
        "largest_gap": float(gap.abs().max()),
    }


class _Training:
    """Steps of a learner on one device."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        self.model, _ = add_adapters(_load(device), 1)
        loss = LossConfig(lo=CLIP[0], hi=CLIP[1], aggregation="seq-mean-token-mean")
        settings = OptimizerSettings(lr=LR, betas=BETAS, eps=EPS, max_gradient_norm=NORM)
        learner = Learner(self.model, Algorithm(loss=loss), batch.ends, settings)
        self.first = self._flatten()
        self.norms = [learner.step(batch.rollouts).gradient_norm for _ in range(STEPS)]
        self.last = self._flatten()

    def _flatten(self) -> Tensor:
        """Return a copy of the whole adapter, (N,) on the CPU."""
        parameters = trainable_parameters(self.model)
        return torch.cat([parameters[name].detach().cpu().flatten() for name in sorted(parameters)])


def _probe(folder: Path, device: torch.device) -> Expectation:
    return probe_model(PeftModel.from_pretrained(_load(device), folder))


def _read_engine(folder: Path, device: torch.device, expected: Expectation) -> Tensor:
    """Return (B, V) log-probabilities after each probe by the engine, on the CPU."""
    model = _load(device)
    base = Policy("reference", Policy.of(model, "reference").weights, model)
    weights = base.with_adapter(folder, "adapter").weights
    asked = expected.prompts
    cache = Cache(weights, len(asked), max(map(len, asked)))
    logits = cache.extend(weights, range(len(asked)), [0] * len(asked), asked)
    return logits.log_softmax(-1).cpu()


def _load(device: torch.device) -> PreTrainedModel:
    model: Any = AutoModelForCausalLM.from_pretrained(
        CHECKPOINT, dtype=torch.float32, local_files_only=True
    )
    placed: PreTrainedModel = model.to(device)
    return placed
