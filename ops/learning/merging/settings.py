"""Every setting of the experiment on merged adapters, frozen: committed before the first reported
run. A result names the commit and the digest of these.

Each member is trained on one weak kind and on replay of the taught ones, as a job of the loop does
it; `joint` is one adapter trained on all the kinds, with the members' budgets together.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from daemon.config.presets import build_loop_algorithm
from daemon.engine.reference.recipe import RECIPE, WEAK
from daemon.engine.reference.weights import CHECKPOINT
from events.algorithm import Algorithm
from events.canonical import exact_json, sha256
from events.jobs import Limits, LoraSettings, OptimizerSettings, SftSettings
from events.messages import StrictModel
from events.serving import MergeMethod

SEEDS: Final = (1, 2, 3, 4, 5)
"""Of the reported runs."""
KINDS: Final = WEAK[:3]
"""Weak kinds, each with a member."""
TAUGHT: Final[Mapping[str, float]] = RECIPE.phases[-1].shares
"""Kind -> its share in the replay."""


class Merge(StrictModel):
    """A way to make one adapter of the members."""

    title: str
    method: MergeMethod
    weight: float = 1.0
    """Of each member."""
    times: Annotated[int, Field(ge=1)] | None = None
    """Rank, in ranks of a member; None: that of all together."""
    cut: bool = False
    """Whether the rank is reached as the released code does it: behind the merge."""


MERGES: Final[Mapping[str, Merge]] = {
    "core_tsv": Merge(title="CORE-TSV, rank of all members", method="core_tsv"),
    "core_tsv_small": Merge(title="CORE-TSV, rank of one member", method="core_tsv", times=1),
    "core_tsv_released": Merge(
        title="CORE-TSV as released, rank of one member", method="core_tsv", times=1, cut=True
    ),
    "core_tsv_mean": Merge(
        title="CORE-TSV of a third of each, rank of all members",
        method="core_tsv",
        weight=1 / len(KINDS),
    ),
    "sum": Merge(title="sum, rank of all members", method="sum"),
    "sum_small": Merge(title="sum, rank of one member", method="sum", times=1),
    "mean": Merge(title="mean, rank of all members", method="sum", weight=1 / len(KINDS)),
}


class Settings(StrictModel):
    """How every run is made."""

    checkpoint: Path = CHECKPOINT
    base: str = "reference"
    """The base model's name in adapters."""
    budget: Annotated[int, Field(ge=1)] = 1024
    """Rollouts of one member, references included."""
    references: Annotated[int, Field(ge=1)] = 128
    """Of them, that a warm start shows of the member's kind; as many of the taught ones."""
    groups: Annotated[int, Field(ge=1)] = 8
    size: Annotated[int, Field(ge=2)] = 8
    max_tokens: Annotated[int, Field(ge=1)] = 64
    replay: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the groups on taught kinds."""
    sft: SftSettings = SftSettings(
        optimizer=OptimizerSettings(lr=4e-3), epochs=4, warmup=0.1, schedule="linear"
    )
    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-3)
    lora: LoraSettings = LoraSettings(rank=16, alpha=32)
    limits: Limits = Limits(kl=None, entropy_factor=None, malformed_factor=None)
    algorithm: Algorithm = build_loop_algorithm(0.1)
    tasks: Annotated[int, Field(ge=1)] = 48
    """Held-out tasks per kind."""
    trials: Annotated[int, Field(ge=1)] = 2
    """Per held-out task."""

    @property
    def digest(self) -> str:
        """sha256 of all of them and of the merges; where the checkpoint lies is left out."""
        own = self.model_dump(mode="json", exclude={"checkpoint"})
        merges = {name: item.model_dump(mode="json") for name, item in MERGES.items()}
        return sha256(exact_json([own, merges, KINDS]))


SETTINGS: Final = Settings()
