"""Every setting of the comparison, frozen: committed before the first reported run. A result names
the commit and the digest of these.

The loop is what `make demo DEMO="--mix ops/demo/weak.json --cycles 8"` runs. The other arms get the
mixture and the kinds by name, which the loop does not.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from daemon.engine.reference import recipe
from events.canonical import exact_json, sha256
from events.jobs import OptimizerSettings, SftSettings
from events.messages import StrictModel
from ops.demo import heldout, place
from ops.demo.mixture import WEAK_FILE, read_mixture
from ops.demo.place import EMBEDDED, SIZES, Size

Arm = Literal["base", "loop", "general", "sft"]
ARMS: Final[Mapping[Arm, str]] = {
    "base": "the base, untrained",
    "loop": "who answers after the last cycle of the loop",
    "general": "general GRPO from the base with the rollouts of all cycles' jobs",
    "sft": "supervised training on the oracle's trajectories, twice as many",
}

CONFIGURATION: Final = Path(place.__file__).with_name("kintsugi.toml")


class Goals(StrictModel):
    """What is to be shown."""

    traffic: float = 0.94
    """Least pass^1 of all traffic after the last cycle."""
    loss: float = 0.02
    """Most that pass^1 of any kind may lie below the base's."""


class Settings(StrictModel):
    """How every arm is made."""

    base_model: str = "reference"
    """Name of the base in the demo's homes."""
    mixture: Mapping[str, float] = read_mixture(WEAK_FILE)
    """Kind of task -> its share of the traffic."""
    weak: tuple[str, ...] = recipe.WEAK
    """The kinds that the base is weak in."""
    cycles: Annotated[int, Field(ge=1)] = 8
    size: str = "whole"
    """Name of the demo's size."""
    references: Annotated[float, Field(gt=0)] = 2.0
    """Trajectories of the oracle per rollout of the loop's jobs, for the arm `sft`."""
    plain: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of these trajectories that are of kinds which are not weak."""
    sft: SftSettings = SftSettings(
        optimizer=OptimizerSettings(lr=2e-3), epochs=1, warmup=0.05, schedule="linear"
    )
    goals: Goals = Goals()

    def build_size(self, seed: int = 0) -> Size:
        """The size of the demo's home of a seed."""
        return replace(SIZES[self.size], seed=seed, cycles=self.cycles)

    @property
    def rollouts(self) -> int:
        """Most rollouts that the loop's jobs can spend together."""
        return self.cycles * SIZES[self.size].rollouts

    @property
    def digest(self) -> str:
        """sha256 of all of them, and of how the demo's homes are made."""
        homes = [sha256(path.read_text()) for path in (CONFIGURATION, EMBEDDED)]
        size = self.build_size()
        played = [asdict(size), asdict(size.pace), heldout.TRIALS]
        return sha256(exact_json([self.model_dump(mode="json"), homes, played]))


SETTINGS: Final = Settings()
