"""Settings of Structured Reflection's table, in addition to the model and its endpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envs.task import GENERATED
from events.messages import StrictModel
from ops.reproduce.settings import EnvironmentDefaults, Served

TEMPERATURE: Final = 0.7
TOP_P: Final = 0.9
"""top_p of evaluations, as in the benchmark's program for repairs."""

TRAINING_TEMPERATURE: Final = 0.85
LORA_RANK: Final = 8
LORA_ALPHA: Final = 32.0
"""Training uses the paper's temperature and its program's adapters. The program's repetition
penalty of 1.1 is left out, because sampled tokens would not follow the policy."""

REPAIR_TOKENS: Final = 300
CASE_TOKENS: Final = 2000
"""Assumed tokens of a repair and of a case of BFCL, for estimates only."""

SUPERVISED: Final = "sft"
PRESETS: Final = ("sr_paper", "sr_code", "dapo", "gspo")
"""Presets of reinforcement learning after the supervised training; each is an arm of the table."""


class Counts(StrictModel):
    """Amounts of tasks, trials, lessons and training."""

    tasks: Annotated[int, Field(ge=1)] | None
    """Number of evaluated tasks; None for all tasks of the split."""
    trials: Annotated[int, Field(ge=1)]
    lessons: Annotated[int, Field(ge=2)]
    shown: Annotated[int, Field(ge=1)]
    """Most lessons for supervised training; the others are for reinforcement learning."""
    rollouts: Annotated[int, Field(ge=1)]
    """Rollouts of each reinforced arm."""
    cases: Annotated[int, Field(ge=1)] | None
    """Cases per category of BFCL; None for all."""
    items: Annotated[int, Field(ge=1)] | None
    """Number of items of Tool-Reflection-Bench; None for all."""
    samples: Annotated[int, Field(ge=1)] = 8
    groups: Annotated[int, Field(ge=1)] = 4
    size: Annotated[int, Field(ge=2)] = 4


WHOLE: Final = Counts(
    tasks=None, trials=8, lessons=6000, shown=1000, rollouts=20_000, cases=None, items=None
)
"""The paper's amounts: one epoch on 5,000 samples with four answers each."""
SMALL: Final = Counts(
    tasks=20, trials=3, lessons=64, shown=32, rollouts=64, cases=2, items=2, samples=3
)

RATE: Final = 0.2
"""Share of evaluated tasks that begin after a mistake, for each operator; the rest is clean."""


ENVIRONMENTS: Final[Mapping[str, EnvironmentDefaults]] = {
    "airline": EnvironmentDefaults(split="test", max_tokens=4096, tokens=6000),
    "retail": EnvironmentDefaults(split="test", max_tokens=4096, tokens=6000),
    # The reference policy spells a reflection letter by letter.
    "shop": EnvironmentDefaults(split=GENERATED, tasks=200, max_tokens=256, tokens=100),
}


class Reproduction(Served):
    """The plan of one run of the table."""

    counts: Counts
    presets: tuple[str, ...]
    file: Path | None
    extra: str
    """Further fields of the items' requests, as JSON."""
    bfcl: bool

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the trained policies."""
        return (SUPERVISED, *self.presets)

    @property
    def policies(self) -> tuple[str, ...]:
        """Return the policies of the table."""
        return ("base", *self.arms)

    def name_policy(self, policy: str) -> str:
        """Return a policy's name at the endpoint."""
        return self.model if policy == "base" else f"reflection-{policy}-{self.digest[:8]}"
