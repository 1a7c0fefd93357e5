"""A policy in the engine: a checkpoint, a checkpoint with an adapter, or a model in training.

A policy never changes, so one policy answers a whole call. Each policy has a copy of the matrices
that its adapter changes, so that an adapter costs no time per token; models are small enough.
Guarantee: the same logits as transformers' own forward, to rounding. `load`, and `of` for a plain
model, check this on a probe and refuse other models. Llama-like decoders run (Qwen2, Qwen3, Llama,
Mistral without sliding windows). Not covered: mixtures of experts, quantised weights, many devices.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, PreTrainedModel

from daemon.engine.cache import Cache
from daemon.engine.lora import attach, read_adapter
from daemon.engine.weights import IncompatibleModel, Weights

_PROBE: Final = 12
_TOLERANCE: Final = 1e-3
"""Largest difference of a float32 logit from transformers', as a share of the largest logit."""


class Policy:
    """A named model in the engine, with immutable weights."""

    def __init__(
        self, name: str, weights: Weights, checkpoint: PreTrainedModel | None = None
    ) -> None:
        """Use `load`, `of` or `with_adapter`."""
        self.name = name
        self.weights = weights
        self._checkpoint = checkpoint

    @classmethod
    def load(cls, directory: Path, name: str, dtype: torch.dtype = torch.float32) -> Self:
        """Load a checkpoint. Raise IncompatibleModel, OSError."""
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, local_files_only=True)
        return cls(name, _proven(model), model)

    @classmethod
    def of(cls, model: PreTrainedModel | PeftModel, name: str) -> Self:
        """Copy a model's present weights; no probe if it has adapters. Raise IncompatibleModel."""
        if isinstance(model, PeftModel):
            base: Any = model.get_base_model()
            return cls(name, Weights.of(base))
        return cls(name, _proven(model))

    def with_adapter(self, folder: Path, name: str) -> "Policy":
        """Return a new policy: this base with the adapter in `folder` merged in. Raise BadAdapter
        without a fitting adapter, and ValueError for a policy without a checkpoint."""
        if self._checkpoint is None:
            raise ValueError(f"{self.name} was not loaded from a checkpoint: load its base first")
        adapter = read_adapter(folder, self._checkpoint)
        with silence_peft():
            try:
                attach(self._checkpoint, adapter)
                return Policy(name, self.weights.with_adapters(self._checkpoint))
            finally:
                _without_adapters(self._checkpoint)

    @property
    def checkpoint(self) -> PreTrainedModel | None:
        """The loaded model of `load`, for checks of adapters; None for other policies."""
        return self._checkpoint

    @property
    def device(self) -> torch.device:
        """Device that holds the weights."""
        return self.weights.embedding.device

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model knows."""
        return self.weights.shape.vocabulary

    @property
    def context(self) -> int:
        """Largest number of tokens for which the model's configuration is made."""
        return self.weights.shape.context


@contextmanager
def silence_peft() -> Iterator[None]:
    """Suppress two needless warnings of PEFT: on an outdated name that PEFT up to 0.21 asks
    transformers for, and on merging an adapter of a tied head, which the engine never does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
        yield


def load_policy(
    directory: Path, name: str, dtype: Literal["float32", "bfloat16"], threads: int | None
) -> Policy:
    """Load a checkpoint; `threads` None: torch's default. Raise IncompatibleModel, OSError."""
    if threads is not None:
        torch.set_num_threads(threads)
    return Policy.load(directory, name, getattr(torch, dtype))


def _without_adapters(model: PreTrainedModel) -> None:
    """Remove PEFT's adapter layers from a model, also after PEFT failed while it added them."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            base: Any = module.get_base_layer()
            model.set_submodule(name, base)
    vars(model).pop("peft_config", None)


def _proven(model: Any) -> Weights:
    """Return a model's weights after a probe. Raise IncompatibleModel if the logits differ."""
    weights = Weights.of(model)
    probe = [(7 + 31 * place) % weights.shape.vocabulary for place in range(_PROBE)]
    training = model.training
    with torch.no_grad():
        model.eval()
        ids = torch.tensor([probe], device=weights.embedding.device)
        own = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        model.train(training)
    cache = Cache(weights, slots=1, length=_PROBE)
    cache.extend(weights, [0], [0], [probe[: _PROBE // 2]])
    ours = cache.extend(weights, [0], [_PROBE // 2], [probe[_PROBE // 2 :]])[0]
    difference = float((own - ours).abs().max())
    tolerance = _TOLERANCE if weights.embedding.dtype == torch.float32 else 0.05
    if not difference <= tolerance * float(own.abs().max()):
        raise IncompatibleModel(
            f"{type(model).__name__} computes other logits than the engine (they differ by "
            f"{difference:g}); serve it with vLLM"
        )
    return weights
