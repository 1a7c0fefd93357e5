"""Every setting of the comparison, frozen: tuned on development seeds, committed before the first
reported run. A result names the commit and the digest of these.

The algorithm, the rank and the rule for the learning rate are those that jobs of the loop have by
default (ADR 0054), for both ways of training alike.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from daemon.config.presets import build_loop_algorithm
from events.jobs import OptimizerSettings, SftSettings
from events.messages import StrictModel
from ops.learning.settings import Settings as CommonSettings
from ops.learning.settings import Updates, traffic
from ops.learning.targets import Rule

Arm = Literal["base", "general", "targeted", "warm", "warm_general", "warm_targeted"]


class ArmDefinition(StrictModel):
    """What an arm does with its rollouts."""

    title: str
    warm: bool = False
    """Whether it begins with the warm start that a seed's warm arms share."""
    training: Literal["none", "general", "targeted"] = "none"


ARMS: Final[Mapping[Arm, ArmDefinition]] = {
    "base": ArmDefinition(title="the base policy, untrained"),
    "general": ArmDefinition(title="general, from the base", training="general"),
    "targeted": ArmDefinition(title="targeted, from the base", training="targeted"),
    "warm": ArmDefinition(title="the warm start alone", warm=True),
    "warm_general": ArmDefinition(
        title="general, from the warm start", warm=True, training="general"
    ),
    "warm_targeted": ArmDefinition(
        title="targeted, from the warm start", warm=True, training="targeted"
    ),
}
"""In the order in which they are run."""

PAIRS: Final[tuple[tuple[Arm, Arm, Arm], ...]] = (
    ("base", "general", "targeted"),
    ("warm", "warm_general", "warm_targeted"),
)
"""Where both begin, the general arm, the targeted one."""

SEEDS: Final = (1, 2, 3, 4, 5)
"""Of the reported runs."""

MIXES: Final[Mapping[str, Mapping[str, float]]] = {
    "mixture": traffic("main", 0.34),
    "unseen": traffic("unseen", 0.34),
}
"""Traffic -> kind -> its share: the weak kinds have .34 in equal parts (.085 each of the mixture),
the six plain ones .11 each."""


class Settings(CommonSettings):
    """How every run is made; what is not named here is as in the experiment of four arms, of which
    `warm_start` and `refining` are read by nothing here."""

    mixes: Mapping[str, Mapping[str, float]] = MIXES
    budgets: tuple[int, ...] = (3072, 6144, 9216)
    """Rollouts, diagnoses and references included, after which a policy is evaluated and the next
    round begins: a diagnosis of the policy as it is then, and a job that goes on from it."""
    rule: Rule = Rule(failed=0.1)
    """A tenth, because later rounds meet policies that fail less."""
    references: Annotated[int, Field(ge=1)] = 256
    """Trajectories of the oracle on traffic that the warm start shows. They follow the traffic and
    no diagnosis, so that the general arm inherits no choice of targets."""
    sft: SftSettings = SftSettings(
        optimizer=OptimizerSettings(lr=4e-3), epochs=4, warmup=0.1, schedule="linear"
    )
    updates: Updates = Updates(
        algorithm=build_loop_algorithm(0.1), optimizer=OptimizerSettings(lr=2e-3)
    )


SETTINGS: Final = Settings()
