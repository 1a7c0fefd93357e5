"""Every setting of the experiment on several environments, frozen: committed before the first
reported run. A result names the commit and the digest of these.

Algorithm, learning rate, size of a batch, recorded traffic and the share of the weak kinds in it
are those of the screen on its weak mixture. The job for one environment has a third of the rollouts
of a job for all three.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from events.canonical import exact_json, sha256
from events.messages import StrictModel
from ops.learning.screen.settings import CONFIGURATIONS, MIXTURES
from ops.learning.screen.settings import Settings as ScreenSettings
from ops.learning.user_faults.settings import LOOP

SEEDS: Final = (1, 2, 3, 4, 5)
"""Of the reported runs."""
BASE: Final = "base"
JOINT: Final[tuple[Literal["mixed", "apart"], ...]] = ("mixed", "apart")
"""Arms with one job in all environments, by what a batch of theirs has."""
UNTAUGHT: Final = ("return", "address", "compound")
"""Kinds that no environment has and that the base passes: what training may damage."""
_SCREEN: Final = MIXTURES["weak"]
_WEAK_SHARE: Final = 0.34
"""Of an environment's traffic, as in the screen's mixture."""


class Kinds(StrictModel):
    """What the customers of an environment ask for."""

    weak: tuple[str, ...]
    """Kinds that the base passes now and then, which have a third of the traffic."""
    plain: tuple[str, ...]
    """Kinds that it passes, which have the rest."""

    @property
    def every(self) -> tuple[str, ...]:
        """All of them, the weak ones first."""
        return (*self.weak, *self.plain)

    @property
    def traffic(self) -> dict[str, float]:
        """Kind -> its share of the traffic."""
        weak = dict.fromkeys(self.weak, _WEAK_SHARE / len(self.weak))
        return weak | dict.fromkeys(self.plain, (1 - _WEAK_SHARE) / len(self.plain))


ENVIRONMENTS: Final[Mapping[str, Kinds]] = {
    "changes": Kinds(weak=("two_writes", "fallback"), plain=("exchange", "payment")),
    "refusals": Kinds(weak=("changed_mind", "handover"), plain=("cancel", "ineligible")),
    "questions": Kinds(weak=("question", "followup"), plain=("cond_status",)),
}
"""Name -> kinds."""


class Settings(StrictModel):
    """How every run is made."""

    budget: Annotated[int, Field(ge=1)] = _SCREEN.training["rollouts"]
    """Rollouts of a job for each environment that it is in."""
    recorded: Annotated[int, Field(ge=1)] = _SCREEN.recorded
    """Rollouts of the base in each environment, which are diagnosed; all arms have the same."""
    training: Mapping[str, int] = {}
    """Further fields of the section `training`."""
    tasks: Annotated[int, Field(ge=1)] = _SCREEN.tasks
    """Held-out, per kind."""
    trials: Annotated[int, Field(ge=1)] = 2
    """Per held-out task."""

    @property
    def digest(self) -> str:
        """sha256 of all of them, of the environments and of the loop's algorithm."""
        kinds = {name: own.model_dump(mode="json") for name, own in ENVIRONMENTS.items()}
        loop = CONFIGURATIONS[LOOP].model_dump(mode="json")
        own = self.model_dump(mode="json")
        return sha256(exact_json([own, kinds, list(UNTAUGHT), loop, _SCREEN.digest]))

    def build_recording(self, environment: str) -> ScreenSettings:
        """Return how the base's traffic in an environment is recorded, and a job made of it."""
        training = {**_SCREEN.training, "rollouts": self.budget, **self.training}
        return _SCREEN.model_copy(
            update={
                "traffic": ENVIRONMENTS[environment].traffic,
                "recorded": self.recorded,
                "training": training,
            }
        )


SETTINGS: Final = Settings()
