"""Make random adapters of the reference policy, in the learner's directory layout."""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import PROVENANCE, WEIGHTS, Base, Provenance, verify
from daemon.adapters.fingerprint import Expectation
from daemon.engine.fingerprint import fingerprint, probe_model
from daemon.engine.identity import weights_sha256
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.lora import attach, save, trainable_parameters
from events.jobs import LoraSettings

SETTINGS = LoraSettings()
VERSIONS = {"v1": 0.0, "v2": 0.001, "v3": 0.003}
SPREAD = 0.01
"""Standard deviation of v1's weights; it puts v1 at a distance of 0.27 nats from its base."""


@dataclass(frozen=True)
class Adapters:
    """Directories of adapters of one base."""

    folder: Path
    base: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name

    def read_fingerprint(self, name: str) -> Expectation:
        expectation = verify(self[name]).fingerprint
        assert expectation is not None
        return expectation

    def others(self, name: str) -> dict[str, Expectation]:
        """Return name -> fingerprint of the other versions, which could answer in its place."""
        return {version: self.read_fingerprint(version) for version in VERSIONS if version != name}


class Maker:
    """Makes adapters of one base, which it keeps in memory."""

    def __init__(self, checkpoint: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self._base = Base(name="reference", sha256=weights_sha256(self._model))
        self._reference: Expectation | None = None

    @contextmanager
    def open_adapter(
        self, spread: float, drift: float = 0.0, seed: int = 1, rank: int = SETTINGS.rank
    ) -> Iterator[tuple[PeftModel, Provenance]]:
        """Yield the base with an adapter of random weights until the block ends."""
        settings = LoraSettings(rank=rank)
        adapted = attach(self._model, settings, seed)
        chance = torch.Generator().manual_seed(seed)
        later = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for name, weights in trainable_parameters(adapted).items():
                if "lora_B" in name:
                    weights.normal_(std=spread, generator=chance) if spread else None
                    weights.add_(drift * torch.randn(weights.shape, generator=later))
        fields: dict[str, Any] = {"seed": seed, "steps": 1, "rollouts": (), "spec": {}}
        expectation = self._probe(adapted)
        try:
            yield (
                adapted,
                Provenance(base=self._base, lora=settings, fingerprint=expectation, **fields),
            )
        finally:
            self._model = adapted.unload()

    def _probe(self, adapted: PeftModel) -> Expectation:
        if self._reference is None:
            self._reference = probe_model(adapted)
            return self._reference
        answers = fingerprint(adapted, self._reference.prompts)
        return self._reference.model_copy(update={"adapter": answers})

    def write(self, folder: Path, spread: float, **options: Any) -> Path:
        """Write a random adapter, with its fingerprint in its provenance. Return the directory."""
        with self.open_adapter(spread, **options) as (adapted, provenance):
            save(adapted, folder, provenance)
        return folder


def other_base(folder: Path) -> Path:
    """Write a checkpoint of the reference policy's shape with other weights."""
    model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    torch.manual_seed(5)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.2 * weights.std() * torch.randn_like(weights))
    model.save_pretrained(folder)
    return folder


def bare(source: Path, folder: Path) -> Path:
    """Copy an adapter without its provenance, as any trainer leaves one."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(PROVENANCE))
    return folder


def corrupt(source: Path, folder: Path) -> Path:
    """Return a copy with the numbers of one tensor changed."""
    copied = bare(source, folder)
    tensors = load_file(copied / WEIGHTS)
    name = next(name for name in tensors if "layers.2.self_attn.v_proj.lora_B" in name)
    tensors[name] = tensors[name].roll(1, dims=0).contiguous()
    save_file(tensors, copied / WEIGHTS, metadata={"format": "pt"})
    return copied


def make_adapters(folder: Path) -> Adapters:
    """Make VERSIONS, adapters at several distances from the base, and one of another base."""
    with warnings.catch_warnings():
        # PEFT warns about future changes of transformers.
        warnings.simplefilter("ignore")
        maker = Maker(CHECKPOINT)
        for name, drift in VERSIONS.items():
            maker.write(folder / name, SPREAD, drift=drift)
        maker.write(folder / "fresh", spread=0.0)
        maker.write(folder / "faint", spread=SPREAD / 30)
        maker.write(folder / "strong", spread=3 * SPREAD)
        Maker(other_base(folder / "base")).write(folder / "strange", SPREAD)
    corrupt(folder / "v2", folder / "corrupted")
    for name in (*VERSIONS, "fresh", "strange"):
        bare(folder / name, folder / f"{name}-bare")
    return Adapters(folder, CHECKPOINT)
