"""Every setting of the experiment on users, frozen. They were chosen on seed 0 of development."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from daemon.engine.reference.weights import CHECKPOINT
from daemon.jobs.learning_rate import MANNERS_DIALOGUES, MANNERS_RATE
from envs.shop.kinds import KINDS
from events.canonical import exact_json, sha256
from events.jobs import LoraSettings, OptimizerSettings, SftSettings
from events.messages import StrictModel

BASE: Final = "reference"
SEEDS: Final = (1, 2, 3, 4, 5)
SIZES: Final = (0, 32, 128, 512, 8192)
"""Dialogues that a user is shown; 0: the base plays as it is."""
MANNERS_TOKENS: Final = 256
"""Most tokens of a line in a manner of plans, as the daemon has it: 64 would cut some lines off."""


class Settings(StrictModel):
    """How every run is made."""

    checkpoint: Path = CHECKPOINT
    exposures: Annotated[int, Field(ge=1)] = 32768
    """Dialogues that are shown in all epochs together, unless training stops before: of few
    dialogues each is shown more often."""
    held_out: Annotated[int, Field(ge=1)] = 44
    """Dialogues that tell when training stops."""
    examined: Annotated[int, Field(ge=1)] = 600
    """Dialogues of a gate."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    """Of a line."""
    lora: LoraSettings = LoraSettings(
        rank=32, alpha=64, targets=(*LoraSettings().targets, "lm_head")
    )
    """The head too: the base never wrote a customer's words, and without it the rest learns to
    write them several times slower."""
    sft: SftSettings = SftSettings(
        optimizer=OptimizerSettings(lr=3e-3), batch_tokens=2048, warmup=0.05, schedule="linear"
    )

    def compute_digest(self, *, manners: bool) -> str:
        """Return the sha256 of all that users depend on; `manners`: of users that trained on in all
        manners. The path of the checkpoint is left out."""
        own = self.model_dump(mode="json", exclude={"checkpoint"})
        more = [MANNERS_DIALOGUES, MANNERS_RATE, MANNERS_TOKENS] if manners else []
        return sha256(exact_json([own, SIZES, list(KINDS), *more]))

    def choose_sft(self, size: int) -> SftSettings:
        """Return how a user is trained on so many dialogues, each shown equally often."""
        return self.sft.model_copy(update={"epochs": max(1, self.exposures // size)})


SETTINGS: Final = Settings()
