"""Every setting of the experiment on the data engine, frozen: committed before the first reported
run. A result names the commit and the digest of these.

Tasks of all kinds are written by plans, by a writer with planted faults (planted.py), and a job
trains on those that are accepted and on nothing else. Every arm has the same number of tries, one
for each place, so that arms differ in what becomes of the tries alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from daemon.config.presets import build_loop_algorithm
from daemon.engine.reference.weights import CHECKPOINT
from events.algorithm import Algorithm
from events.canonical import exact_json, sha256
from events.jobs import Limits, LoraSettings, OptimizerSettings, SftSettings
from events.messages import StrictModel
from ops.learning.synthesis.planted import KINDS

SEEDS: Final = (1, 2, 3, 4, 5)
"""Of the reported runs."""
RATES: Final = (0.05, 0.2, 0.4, 0.6)
"""Share of the tries in which the writer means to plant a fault."""
PLANS: Final = (4, 64)
Mode = Literal["reflection", "verification", "neither"]
MODES: Final[Mapping[Mode, str]] = {
    "reflection": "the ten checks, rollouts verified, up to three rounds of reflection",
    "verification": "the ten checks, rollouts verified, plans as they were laid out",
    "neither": "no check but that the definition is whole and its gold calls repeat",
}
"""What becomes of a try. Reflection without verification is no arm: it reads the failures that
verification finds."""


class Arm(StrictModel):
    """A way to have tasks written."""

    rate: Annotated[float, Field(ge=0, lt=1)]
    plans: Annotated[int, Field(ge=1)]
    mode: Mode

    @property
    def name(self) -> str:
        """Name in results."""
        return f"{self.mode}-{self.plans}-{self.rate:g}"

    @property
    def kind_rate(self) -> float:
        """Return the rate of each kind of fault; the chance that at least one falls is `rate`."""
        return 1 - float((1 - self.rate) ** (1 / len(KINDS)))


ARMS: Final = tuple(
    Arm(rate=rate, plans=plans, mode=mode) for rate in RATES for plans in PLANS for mode in MODES
)
"""Of the part without training."""
TRAINED: Final = (
    Arm(rate=0.0, plans=64, mode="reflection"),
    Arm(rate=0.4, plans=64, mode="reflection"),
    Arm(rate=0.4, plans=64, mode="verification"),
    Arm(rate=0.4, plans=64, mode="neither"),
    Arm(rate=0.0, plans=4, mode="reflection"),
    Arm(rate=0.4, plans=4, mode="reflection"),
)
"""Whose accepted tasks a job is trained on; the first has a writer without faults."""


class Settings(StrictModel):
    """How every run is made."""

    tries: Annotated[int, Field(ge=1)] = 1024
    """Of an arm, one for each place."""
    rounds: Annotated[int, Field(ge=1)] = 3
    """Most rounds of reflection, where there is one."""
    audited: Annotated[int, Field(ge=1)] = 512
    """Fresh tasks by the plans as they stand after each round, in which planted faults are
    counted."""
    compliance: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Share of the tries in which the writer obeys a rule."""
    base: str = "reference"
    """The base model's name in events and adapters."""
    checkpoint: Path = CHECKPOINT

    @property
    def digest(self) -> str:
        """sha256 of all of them and of the arms; where the checkpoint lies is left out."""
        own = self.model_dump(mode="json", exclude={"checkpoint"})
        return sha256(exact_json([own, [arm.model_dump(mode="json") for arm in ARMS]]))


class JobSettings(StrictModel):
    """How a job is trained on what an arm accepted, and examined."""

    budget: Annotated[int, Field(ge=1)] = 2048
    """Rollouts of a job, references included."""
    references: Annotated[int, Field(ge=1)] = 128
    """Of them, that a warm start shows."""
    groups: Annotated[int, Field(ge=1)] = 8
    size: Annotated[int, Field(ge=2)] = 8
    max_tokens: Annotated[int, Field(ge=1)] = 64
    sft: SftSettings = SftSettings(
        optimizer=OptimizerSettings(lr=4e-3), epochs=4, warmup=0.1, schedule="linear"
    )
    optimizer: OptimizerSettings = OptimizerSettings(lr=1e-3)
    lora: LoraSettings = LoraSettings(rank=16, alpha=32)
    limits: Limits = Limits(kl=None, entropy_factor=None, malformed_factor=None)
    algorithm: Algorithm = build_loop_algorithm(0.1)
    tasks: Annotated[int, Field(ge=1)] = 48
    """Held-out tasks per kind, from the generator."""
    trials: Annotated[int, Field(ge=1)] = 2
    """Per held-out task."""

    @property
    def digest(self) -> str:
        """sha256 of all of them, of the arms and of how their tasks are written."""
        arms = [arm.model_dump(mode="json") for arm in TRAINED]
        return sha256(exact_json([self.model_dump(mode="json"), arms, SETTINGS.digest]))


SETTINGS: Final = Settings()
JOBS: Final = JobSettings()
