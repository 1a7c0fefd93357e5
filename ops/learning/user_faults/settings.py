"""Every setting of the experiments on users that err and on users that an adapter plays, frozen:
committed before the first reported run. Traffic, budget, held-out tasks and trials are those of the
screen on its weak mixture, the algorithm is the loop's.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field

from events.canonical import exact_json, sha256
from events.messages import StrictModel
from ops.learning.screen.settings import CONFIGURATIONS, MIXTURES

LOOP: Final = "sentinel_k2_zero"
"""Configuration of the screen that jobs of the loop have."""
TRAFFIC: Final = MIXTURES["weak"]
BASE: Final = "base"
CLEAN: Final = "clean"


class Arm(StrictModel):
    """What the users of a job's rollouts are like."""

    rate: Annotated[float, Field(ge=0, le=1)]
    """Share of the rollouts whose user is to commit a fault."""
    attribution: bool
    """Whether faults are looked for, and a rollout with one is not judged."""


ARMS: Final[Mapping[str, Arm]] = {
    CLEAN: Arm(rate=0.0, attribution=False),
    **{
        f"{'judged' if attribution else 'silent'}_{percent}": Arm(
            rate=percent / 100, attribution=attribution
        )
        for percent in (5, 10, 20, 40)
        for attribution in (False, True)
    },
}
"""Name -> arm; `silent` without attribution."""

DIGEST: Final = sha256(
    exact_json(
        [
            TRAFFIC.digest,
            CONFIGURATIONS[LOOP].model_dump(mode="json"),
            {name: arm.model_dump() for name, arm in ARMS.items()},
        ]
    )
)


class Budget(StrictModel):
    """An arm with another number of rollouts."""

    arm: str
    rollouts: Annotated[int, Field(gt=0)]


BUDGETS: Final[Mapping[str, Budget]] = {
    "clean_short": Budget(arm=CLEAN, rollouts=1_088),
    "judged_20_long": Budget(arm="judged_20", rollouts=1_472),
}
"""Name -> arm with the rollouts that part two causes of what judged faults cost. At a rate of 20 %
12.8 % of the rollouts have no verdict: `clean_short` judges about as many as `judged_20` does,
`judged_20_long` about as many as `clean` does (in whole batches of 64)."""
BUDGETS_DIGEST: Final = sha256(
    exact_json([DIGEST, {name: budget.model_dump() for name, budget in BUDGETS.items()}])
)

PLAYERS: Final[Mapping[str, int]] = {"untuned": 0, "half_tuned": 512, "tuned": 8192}
"""Name of an arm whose users an adapter plays -> dialogues that it was tuned on, by
ops/learning/users, on the same seed."""
PLAYER_TOKENS: Final = 64
"""Of a line of such a user."""
PLAYERS_DIGEST: Final = sha256(exact_json([DIGEST, dict(PLAYERS), PLAYER_TOKENS]))
