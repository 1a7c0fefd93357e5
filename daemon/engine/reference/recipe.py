"""The reference policy's training as data: mixtures of tasks, numbers of steps, learning rates.

Only this recipe makes it weak: it shows some kinds of task rarely and then no more, others never.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, SerializeAsAny

from envs.shop.kinds import PLAIN
from events.messages import StrictModel

WEAK: Final = ("two_writes", "fallback", "question", "changed_mind")
"""Kinds of task that training shows rarely and then withholds; the last one is never shown."""

Rate = Annotated[float, Field(gt=0, le=1)]


class Phase(StrictModel):
    """A part of the training, with one mixture of tasks."""

    name: str
    steps: Annotated[int, Field(ge=1)]
    shares: Mapping[str, float]
    """Kind of task -> weight of its demonstrations in the mixture."""
    rates: tuple[Rate, Rate]
    """Factors of the learning rates at the phase's beginning and end, with a linear path."""
    test_every: Annotated[int, Field(ge=1)] = 1000
    """Number of steps between two tests. The last step of a phase is always tested."""
    test_tasks: Annotated[int, Field(ge=1)] = 32
    test_trials: Annotated[int, Field(ge=1)] = 8


class Recipe(StrictModel):
    """Everything that decides the trained weights, except the seed and the machine."""

    phases: tuple[SerializeAsAny[Phase], ...]
    muon_rate: float = 0.012
    adamw_rate: float = 3e-3
    warmup: int = 30
    """Number of steps at a phase's beginning over which the learning rates rise from 0."""
    batch_tokens: int = 4096
    """Number of tokens per step, padding included."""
    pool: int = 512
    """Number of demonstrations that are sorted by length together, to save padding."""

    @property
    def steps(self) -> int:
        """Number of steps of all phases."""
        return sum(phase.steps for phase in self.phases)


def _shares(plain: float, **others: float) -> dict[str, float]:
    return dict.fromkeys(PLAIN, plain / len(PLAIN)) | others


_TAUGHT: Final = _shares(0.78, compound=0.12, followup=0.05, cond_status=0.05)
_RARE: Final = {"two_writes": 0.008, "fallback": 0.01, "question": 0.03}
_RARER: Final = {"fallback": 0.006, "question": 0.08}

RECIPE: Final = Recipe(
    phases=(
        Phase(
            name="ordinary",
            steps=1100,
            shares=_TAUGHT,
            rates=(1.0, 0.15),
            test_every=1100,
            test_trials=1,
        ),
        Phase(name="rare", steps=150, shares=_TAUGHT | _RARE, rates=(0.2, 0.2)),
        Phase(name="rarer", steps=60, shares=_TAUGHT | _RARER, rates=(0.2, 0.03)),
        Phase(
            name="withheld",
            steps=20,
            shares=_TAUGHT,
            rates=(0.2, 0.03),
            test_every=10,
            test_tasks=200,
        ),
    )
)
"""The recipe of the reference policy. Shares and lengths were chosen on development seeds, so that
the policy is weak at the four kinds but not lost. Tests in the last phase choose the step."""
