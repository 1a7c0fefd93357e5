"""A policy version in the engine: a checkpoint, one with an adapter, or a model in training.

A policy never changes: a call ends with the one that it began with. Each copies the matrices that
its adapter changes, which a small model can afford, so that an adapter costs nothing per token.
Guarantee: the logits of transformers' own forward, to rounding. `load`, and `of` for a plain model,
check it on a probe and refuse other models; decoders of Llama's kind run (Qwen2, Qwen3, Llama,
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
"""Largest difference of a logit, as a share of the largest logit, in float32."""


class Policy:
    """A name and its weights."""

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
        """Copy a model as it is now, unprobed under adapters. Raise IncompatibleModel."""
        if isinstance(model, PeftModel):
            base: Any = model.get_base_model()
            return cls(name, Weights.of(base))
        return cls(name, _proven(model))

    def with_adapter(self, folder: Path, name: str) -> "Policy":
        """Return this base with an adapter merged in. Raise BadAdapter for another model's adapter
        or none, ValueError for a policy without a checkpoint."""
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
        """Model that it was loaded from, for checks of adapters; None for another policy."""
        return self._checkpoint

    @property
    def device(self) -> torch.device:
        """Device of its weights."""
        return self.weights.embedding.device

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.weights.shape.vocabulary

    @property
    def context(self) -> int:
        """Positions that the model is declared for."""
        return self.weights.shape.context


@contextmanager
def silence_peft() -> Iterator[None]:
    """Suppress needless warnings of PEFT: of a name that it asks transformers for, up to 0.21, and
    of merging an adapter of a tied head, which we never do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
        yield


def load_policy(
    directory: Path, name: str, dtype: Literal["float32", "bfloat16"], threads: int | None
) -> Policy:
    """Load a checkpoint; `threads` None: torch's number. Raise IncompatibleModel, OSError."""
    if threads is not None:
        torch.set_num_threads(threads)
    return Policy.load(directory, name, getattr(torch, dtype))


def _without_adapters(model: PreTrainedModel) -> None:
    """Take out what PEFT put in, also where it failed half way."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            base: Any = module.get_base_layer()
            model.set_submodule(name, base)
    vars(model).pop("peft_config", None)


def _proven(model: Any) -> Weights:
    """Return a model's weights, once proven by a probe. Raise IncompatibleModel."""
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
