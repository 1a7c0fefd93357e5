"""Load what a job trains: the base, the adapter and the learner, equal in each of its processes."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from daemon.adapters.directory import WEIGHTS, Base, WrongBase
from daemon.config.adapter_paths import locate_for_job
from daemon.engine.identity import weights_sha256
from daemon.solver.lora import attach, continue_from
from daemon.solver.update import Learner
from events.errors import KintsugiError
from events.jobs import JobSpec


class CannotBegin(KintsugiError):
    """The base or the adapter of a spec is missing, or differs from what the spec names."""


def checkpoint(spec: JobSpec) -> Path:
    """Return the folder of the base. Raise CannotBegin if it is missing."""
    folder = Path(spec.checkpoint)
    if not (folder / "config.json").is_file():
        raise CannotBegin(f"{folder} holds no checkpoint (no config.json); correct `checkpoint`")
    return folder


def load_model(spec: JobSpec) -> tuple[PeftModel, Base, str | None]:
    """Load the base with the adapter to train; return also the base's identity and the parent's
    sha256. Raise CannotBegin, BadAdapter, WrongBase, OSError."""
    loaded, base = load_base(spec)
    if spec.parent is None:
        return attach(loaded, spec.lora, spec.seed), base, None
    adapted, provenance = continue_from(loaded, locate_for_job(spec.parent))
    if provenance.lora != spec.lora:
        raise CannotBegin(
            f"{spec.parent} was trained with {provenance.lora!r}; give the spec the same `lora`"
        )
    return adapted, base, provenance.files[WEIGHTS]


def load_base(spec: JobSpec) -> tuple[PreTrainedModel, Base]:
    """Load a job's base; return also its identity. Raise CannotBegin, WrongBase, OSError."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        checkpoint(spec), dtype=getattr(torch, spec.dtype), local_files_only=True
    )
    base = Base(name=spec.base, sha256=weights_sha256(loaded))
    if spec.base_sha256 not in (None, base.sha256):
        raise WrongBase(
            f"{spec.checkpoint} has weights {base.sha256[:12]}, and the spec is for "
            f"{str(spec.base_sha256)[:12]}; name the base that it was written for"
        )
    _place(loaded, spec.device)
    assert isinstance(loaded, PreTrainedModel), "it is a model of transformers"
    return loaded, base


def _place(model: Any, device: str) -> None:
    try:
        model.to(device)
    # torch raises several kinds of errors for a missing device.
    except (RuntimeError, AssertionError) as error:
        message = str(error).splitlines()[0]
        raise CannotBegin(f"{device} cannot be used: {message}; correct `device`") from error


def new_learner(spec: JobSpec, model: PeftModel, ends: frozenset[int]) -> Learner:
    """Return a learner with a fresh optimizer. Raise IncompatibleModel."""
    return Learner(
        model,
        spec.algorithm,
        ends,
        spec.optimizer,
        temperature=spec.sampler.temperature,
        micro_tokens=spec.micro_tokens,
        watch_reference=spec.watch_reference,
    )
