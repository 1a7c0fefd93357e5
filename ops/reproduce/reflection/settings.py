"""What the table of Structured Reflection depends on beside the model and its endpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from envs.task import GENERATED
from events.messages import StrictModel
from ops.reproduce.settings import EnvironmentDefaults, Served

TEMPERATURE: Final = 0.7
TOP_P: Final = 0.9
"""Of evaluations: what the benchmark's own program samples repairs with."""

TRAINING_TEMPERATURE: Final = 0.85
LORA_RANK: Final = 8
LORA_ALPHA: Final = 32.0
"""Of training: the paper's temperature and its program's adapters. Its repetition penalty of 1.1 is
left out, because the learner would take tokens for those of another policy."""

REPAIR_TOKENS: Final = 300
CASE_TOKENS: Final = 2000
"""Tokens that are written in a repair and in a case of BFCL: assumptions, for estimates alone."""

SUPERVISED: Final = "sft"
PRESETS: Final = ("sr_paper", "sr_code", "dapo", "gspo")
"""Algorithms that may follow the supervised training, each an arm of its name."""


class Counts(StrictModel):
    """How much there is to do."""

    tasks: Annotated[int, Field(ge=1)] | None
    """Tasks that policies are evaluated on; None: all of the split."""
    trials: Annotated[int, Field(ge=1)]
    """Attempts at each."""
    lessons: Annotated[int, Field(ge=2)]
    """Lessons that are made."""
    shown: Annotated[int, Field(ge=1)]
    """Most of them that supervised training shows; the others are practised on."""
    rollouts: Annotated[int, Field(ge=1)]
    """Budget of each reinforced arm."""
    cases: Annotated[int, Field(ge=1)] | None
    """Cases of each of BFCL's categories; None: all."""
    items: Annotated[int, Field(ge=1)] | None
    """Items of Tool-Reflection-Bench; None: all."""
    samples: Annotated[int, Field(ge=1)] = 8
    """Answers to each item."""
    groups: Annotated[int, Field(ge=1)] = 4
    """Lessons per update."""
    size: Annotated[int, Field(ge=2)] = 4
    """Rollouts per lesson."""


WHOLE: Final = Counts(
    tasks=None, trials=8, lessons=6000, shown=1000, rollouts=20_000, cases=None, items=None
)
"""The paper: an epoch on 5,000 samples, four answers to each."""
SMALL: Final = Counts(
    tasks=20, trials=3, lessons=64, shown=32, rollouts=64, cases=2, items=2, samples=3
)
"""Shows that every stage runs, and nothing else."""

RATE: Final = 0.2
"""Share of the evaluated tasks that begin behind a mistake of each operator; as many are clean."""


ENVIRONMENTS: Final[Mapping[str, EnvironmentDefaults]] = {
    "airline": EnvironmentDefaults(split="test", max_tokens=4096, tokens=6000),
    "retail": EnvironmentDefaults(split="test", max_tokens=4096, tokens=6000),
    # The reference policy spells a reflection letter by letter.
    "shop": EnvironmentDefaults(split=GENERATED, tasks=200, max_tokens=256, tokens=100),
}


class Reproduction(Served):
    """One run of the table."""

    counts: Counts
    presets: tuple[str, ...]
    """Algorithms of the reinforced arms."""
    file: Path | None
    """Items of Tool-Reflection-Bench; None: they are left out."""
    extra: str
    """Further fields of each of their requests, as JSON."""
    bfcl: bool
    """Whether BFCL's multi-turn categories are played."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The policies that are trained."""
        return (SUPERVISED, *self.presets)

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies of the table."""
        return ("base", *self.arms)

    def name_policy(self, policy: str) -> str:
        """Return a policy's name at the endpoint."""
        return self.model if policy == "base" else f"reflection-{policy}-{self.digest[:8]}"
