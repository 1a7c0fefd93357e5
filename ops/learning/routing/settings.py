"""Every setting of the experiment on routers, frozen. Members, kinds, held-out tasks and trials are
those of ops/learning/merging."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from daemon.engine.reference.weights import CHECKPOINT
from events.canonical import exact_json, sha256
from events.messages import StrictModel
from ops.learning.merging.settings import KINDS
from ops.learning.merging.settings import SETTINGS as MERGING

LABELS: Final = "ABCDEFGH"
TRAINED: Final = "trained"
UNTRAINED: Final = "untrained"
"""The panels, by their routers."""


class Settings(StrictModel):
    """How every run is made."""

    checkpoint: Path = CHECKPOINT
    parameters: Annotated[int, Field(ge=1)] = 900_000
    """Of the base, for the learning rate."""
    skilled: Annotated[int, Field(ge=5)] = 100
    """Tasks of each weak kind that the router is shown."""
    others: Annotated[int, Field(ge=5)] = 200
    """Tasks of the taught kinds that it is shown."""
    other: str = "none of these"
    """What it reads of the option without a skill."""

    @property
    def digest(self) -> str:
        """sha256 of all of them and of the members'; where the checkpoint lies is left out."""
        own = self.model_dump(mode="json", exclude={"checkpoint"})
        return sha256(exact_json([own, MERGING.digest, KINDS]))


SETTINGS: Final = Settings()
