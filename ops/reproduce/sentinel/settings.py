"""Settings of SENTINEL's table, in addition to the model and its endpoint."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from daemon.engine.reference.recipe import WEAK
from envs.shop.kinds import PLAIN
from envs.task import GENERATED
from events.messages import StrictModel
from ops.reproduce.settings import EnvironmentDefaults, Served

TEMPERATURE: Final = 1.0

Policy = Literal["base", "general", "targeted"]
POLICIES: Final[tuple[Policy, ...]] = ("base", "general", "targeted")


class Counts(StrictModel):
    """Amounts of tasks, trials and training."""

    tasks: Annotated[int, Field(ge=1)] | None
    """Number of evaluated tasks; None for all tasks of the split."""
    trials: Annotated[int, Field(ge=1)]
    """Trials per task; the table reaches pass^trials."""
    recorded: Annotated[int, Field(ge=1)]
    """Rollouts of the base on traffic to diagnose; part of the targeted policy's budget."""
    written: Annotated[int, Field(ge=1)]
    rollouts: Annotated[int, Field(ge=1)]
    """Total number of rollouts for each of the two trained policies."""
    groups: Annotated[int, Field(ge=1)] = 8
    """Tasks per update."""
    size: Annotated[int, Field(ge=2)] = 8
    """Rollouts per task."""


WHOLE: Final = Counts(tasks=None, trials=4, recorded=256, written=96, rollouts=3072)
SMALL: Final = Counts(tasks=12, trials=2, recorded=96, written=8, rollouts=160, groups=4, size=4)


_WEAK_SHARE: Final = 0.34
_TRAFFIC: Final = dict.fromkeys(PLAIN, (1 - _WEAK_SHARE) / len(PLAIN)) | dict.fromkeys(
    WEAK, _WEAK_SHARE / len(WEAK)
)
"""The reference policy's weak kinds have a third of the traffic."""

ENVIRONMENTS: Final[Mapping[str, EnvironmentDefaults]] = {
    "retail": EnvironmentDefaults(split="test", max_tokens=4096, tokens=6000),
    "shop": EnvironmentDefaults(
        split=GENERATED, tasks=200, traffic=_TRAFFIC, max_tokens=64, tokens=60
    ),
}


class Reproduction(Served):
    """The plan of one run of the table."""

    counts: Counts
    traffic: Mapping[str, float]

    def name_policy(self, policy: Policy) -> str:
        """Return a policy's name at the endpoint."""
        return self.model if policy == "base" else f"sentinel-{policy}-{self.digest[:8]}"

    def select_evaluated(self) -> dict[str, Any]:
        """Return the fields of the selection of evaluated tasks, of the split or generated."""
        first = {"first": self.counts.tasks}
        return first | ({"mix": self.traffic} if self.traffic else {"split": self.split})
