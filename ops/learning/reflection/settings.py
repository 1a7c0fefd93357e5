"""Every setting of the experiment on lessons, frozen: tuned on development seeds, committed before
the first reported run. A result names the commit and the digest of these.

Lessons and ordinary references are of the taught kinds alone, so that what an arm gains on the weak
kinds comes from nothing that was shown of them; the arm `loop` is the exception.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from daemon.config.presets import build_loop_algorithm, preset
from daemon.engine.reference.recipe import RECIPE, WEAK
from daemon.engine.reference.weights import REFLECTING
from envs.task import Operator
from events.algorithm import Algorithm
from events.canonical import exact_json, sha256
from events.jobs import Limits, LoraSettings, OptimizerSettings, RewardKind, SftSettings
from events.messages import StrictModel

Arm = Literal[
    "base", "prompted", "sft_plain", "sft", "rl", "sft_rl", "sft_dapo", "sft_gspo", "loop"
]


class ArmDefinition(StrictModel):
    """What an arm does with its budget."""

    title: str
    prompted: bool = False
    """Whether its system prompt asks for reflections."""
    shown: Literal["nothing", "some", "all"] = "nothing"
    """How much of the budget is references."""
    reflects: bool = True
    """Whether the references of lessons have their reflections."""
    algorithm: str | None = None
    """Preset of reinforcement learning, or `loop`; None: there is none."""
    reward: RewardKind = "repair"
    """Of the pool of lessons."""

    @property
    def is_trained(self) -> bool:
        """Whether it has an adapter."""
        return self.shown != "nothing" or self.algorithm is not None


ARMS: Final[Mapping[Arm, ArmDefinition]] = {
    "base": ArmDefinition(title="the base, untrained"),
    "prompted": ArmDefinition(title="the base, prompted to reflect", prompted=True),
    "sft_plain": ArmDefinition(
        title="supervised, repairs without reflections, as many tokens", shown="all", reflects=False
    ),
    "sft": ArmDefinition(title="supervised, repairs with reflections", shown="all"),
    "rl": ArmDefinition(title="RL from the base, sr_paper", algorithm="sr_paper"),
    "sft_rl": ArmDefinition(
        title="supervised, then RL, sr_paper", shown="some", algorithm="sr_paper"
    ),
    "sft_dapo": ArmDefinition(title="supervised, then RL, dapo", shown="some", algorithm="dapo"),
    "sft_gspo": ArmDefinition(title="supervised, then RL, gspo", shown="some", algorithm="gspo"),
    "loop": ArmDefinition(
        title="the loop's mixture: lessons, weak kinds, replay",
        shown="some",
        algorithm="loop",
        reward="both",
    ),
}
"""In the order in which they are run."""

CONTROL: Final[Arm] = "sft_plain"
"""The arm that every other one is compared with: the same repairs, and no reflection."""
SEEDS: Final = (1, 2, 3, 4, 5)
"""Of the reported runs."""
TAUGHT: Final[Mapping[str, float]] = RECIPE.phases[-1].shares
"""Kind -> its share among ordinary references, replay and sources of lessons."""
PROMPT: Final = (
    "Where a tool answers with an error, first write in <reflect></reflect> what was wrong with "
    "the call, then make the right call."
)
"""Further line of the system prompt of the arm `prompted`."""


class Goals(StrictModel):
    """What the issue asks for."""

    repair: Mapping[Operator, float] = {"argument": 0.6, "missing": 0.5}
    """Operator -> least Repair@1."""
    injected: float = 0.9
    """Least pass^1 behind one mistake, as a share of pass^1 without."""
    loss: float = 0.02
    """Most that a clean kind may lose of pass^1."""


class Settings(StrictModel):
    """How every run is made."""

    checkpoint: Path = REFLECTING
    base: str = "reflecting"
    """The base model's name in events and adapters."""
    budget: Annotated[int, Field(ge=1)] = 2048
    """Rollouts of an arm, references included; of `sft_plain`, what has as many written tokens."""
    references: Annotated[int, Field(ge=2)] = 768
    """Of them, where only some of the budget is shown. Half are lessons."""
    groups: Annotated[int, Field(ge=1)] = 8
    """Tasks per step."""
    size: Annotated[int, Field(ge=2)] = 8
    """Rollouts per task."""
    max_tokens: Annotated[int, Field(ge=1)] = 96
    """Most tokens of one answer: a reflection and a call."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.8
    replay: Annotated[float, Field(ge=0, lt=1)] = 0.3
    """Share of the groups on ordinary tasks of the taught kinds, by their verdict."""
    weak: Annotated[float, Field(ge=0, lt=1)] = 0.35
    """Share of the groups on weak kinds in the arm `loop`."""
    sft: SftSettings = SftSettings(
        optimizer=OptimizerSettings(lr=4e-3), epochs=3, warmup=0.1, schedule="linear"
    )
    optimizer: OptimizerSettings = OptimizerSettings(lr=2e-3)
    """Of reinforcement learning."""
    lora: LoraSettings = LoraSettings(rank=16, alpha=32)
    limits: Limits = Limits(
        kl=None, ratio_low=None, ratio_high=None, entropy_factor=None, malformed_factor=None
    )
    """Whether an adapter is good is what the experiment asks: none is stopped early."""
    algorithms: Mapping[str, Algorithm] = {
        **{name: preset(name) for name in ("sr_paper", "dapo", "gspo")},
        "loop": build_loop_algorithm(0.1),
    }
    tasks: Annotated[int, Field(ge=1)] = 48
    """Held-out tasks per kind."""
    trials: Annotated[int, Field(ge=1)] = 3
    """Per held-out task."""
    lessons: Annotated[int, Field(ge=1)] = 40
    """Held-out lessons per operator."""
    tries: Annotated[int, Field(ge=5)] = 8
    """Per held-out lesson, each a whole episode."""
    kinds: tuple[str, ...] = (*sorted(TAUGHT), *WEAK)
    """That are held out."""
    goals: Goals = Goals()

    @property
    def digest(self) -> str:
        """sha256 of all of them; where the checkpoint lies is left out."""
        return sha256(exact_json(self.model_dump(mode="json", exclude={"checkpoint"})))


SETTINGS: Final = Settings()
