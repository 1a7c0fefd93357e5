"""Settings of AReaL-SEA's table, in addition to the model and its endpoint."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from envs.task import GENERATED
from events.messages import StrictModel
from ops.reproduce.settings import EnvironmentDefaults, Served

TEMPERATURE: Final = 0.6
"""Temperature of evaluations, as in the released program."""
TRAINING_TEMPERATURE: Final = 1.0
PRESET: Final = "areal_paper"

Arm = Literal["base", "sft", "rl_base_user", "rl_tuned_user"]
ARMS: Final[Mapping[Arm, str]] = {
    "base": "the base",
    "sft": "supervised training on accepted trajectories",
    "rl_base_user": "reinforcement learning from `sft`, the untrained base plays the user",
    "rl_tuned_user": "the same, an adapter that was trained on accepted dialogues plays the user",
}
TRAINED: Final[tuple[Arm, ...]] = ("sft", "rl_base_user", "rl_tuned_user")
REINFORCED: Final[tuple[Arm, ...]] = ("rl_base_user", "rl_tuned_user")
TAU2: Final = "tau2"

PUBLISHED: Final[Mapping[tuple[str, Arm], float]] = {
    ("telecom", "sft"): 0.854,
    ("telecom", "rl_base_user"): 0.756,
    ("telecom", "rl_tuned_user"): 0.956,
}
"""(domain, arm) -> pass^1 in the paper (arXiv 2601.22607) with its 30B model."""
ABLATIONS: Final = (
    "The paper of its data, airline, pass^1 after supervised training (0.560 whole): 4 prompts in "
    "place of 64 cost 13.5 points, no evolution of prompts 12, no validation 6. Of its batches: "
    "8x32 0.640, 16x16 0.660, 8x64 0.705, 8x64 without the filter 0.650."
)
"""The paper's ablations. Those with the reference policy are in docs/learning.md and
synthesis.md."""


class Counts(StrictModel):
    """Amounts of tasks, trials and training per domain."""

    tasks: Annotated[int, Field(ge=1)] | None
    """Number of evaluated tasks; None for all tasks of the split."""
    trials: Annotated[int, Field(ge=1)]
    written: Annotated[int, Field(ge=4)]
    plans: Annotated[int, Field(ge=1)]
    shown: Annotated[int, Field(ge=1)]
    """Most tasks for supervised training; the other tasks are for reinforcement learning."""
    dialogues: Annotated[int, Field(ge=2)]
    gate: Annotated[int, Field(ge=1)]
    rollouts: Annotated[int, Field(ge=1)]
    """Rollouts of each reinforced arm."""
    groups: Annotated[int, Field(ge=1)]
    """Tasks per update."""
    size: Annotated[int, Field(ge=2)]
    """Rollouts per task."""


WHOLE: Final = Counts(
    tasks=None, trials=4, written=1024, plans=64, shown=512, dialogues=512, gate=600,
    rollouts=20_480, groups=8, size=64,
)  # fmt: skip
"""Amounts with the paper's batch of 8x64; the paper does not state tasks and updates."""
SMALL: Final = Counts(
    tasks=12, trials=2, written=24, plans=8, shown=12, dialogues=16, gate=12, rollouts=64,
    groups=4, size=4,
)  # fmt: skip
"""Amounts that only show that every stage runs."""


_TAU2: Final = EnvironmentDefaults(split="test", max_tokens=4096, tokens=6000)
ENVIRONMENTS: Final[Mapping[str, EnvironmentDefaults]] = {
    TAU2: _TAU2,
    "retail": _TAU2,
    "airline": _TAU2,
    "telecom": _TAU2,
    "shop": EnvironmentDefaults(split=GENERATED, tasks=200, max_tokens=64, tokens=60),
}


class Reproduction(Served):
    """The plan of one run of the table; `env` is an environment or `tau2`."""

    counts: Counts
    proposer_model: str | None
    """Model that writes plans and tasks; None for rules and templates."""
    proposer_base_url: str | None

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the environments, each with its own policies."""
        return ("retail", "airline", "telecom") if self.env == TAU2 else (self.env,)

    def select_domain(self, domain: str) -> "Reproduction":
        """Return the plan of one domain only."""
        return self.model_copy(update={"env": domain})

    def name_policy(self, arm: str, domain: str) -> str:
        """Return a policy's name at the endpoint."""
        return self.model if arm == "base" else f"areal-{arm}-{domain}-{self.digest[:8]}"
