"""Every setting of the experiments, frozen: tuned on development seeds, committed before the first
reported run. A result names the commit and the digest of these.

Names of kinds of task stand here for two uses alone, to mix the traffic and to sum up held-out
figures. What is trained follows from recorded failures (targets.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from daemon.engine.reference import recipe
from daemon.engine.reference.weights import CHECKPOINT
from envs.shop.kinds import PLAIN
from events.algorithm import Algorithm, FilterConfig, KlConfig, LossConfig
from events.canonical import exact_json, sha256
from events.jobs import Limits, LoraSettings, OptimizerSettings, SftSettings
from events.messages import StrictModel
from ops.demo.mixture import WEAK_FILE, read_mixture
from ops.learning.targets import Rule

Arm = Literal["base", "a", "b", "c", "d"]
ARMS: Final[Mapping[Arm, str]] = {
    "base": "the base policy, untrained",
    "a": "general GRPO on traffic",
    "b": "warm start, then targeted GRPO",
    "c": "the warm start alone",
    "d": "targeted GRPO, no warm start",
}


class WarmStartSettings(StrictModel):
    """Supervised training before the first update of GRPO."""

    references: Annotated[int, Field(ge=1)] = 192
    """Trajectories of the oracle per target, each counted as a rollout."""
    siblings: Annotated[float, Field(ge=0)] = 1.0
    """References of sibling tasks per reference of a target, counted likewise."""
    sft: SftSettings = SftSettings(
        optimizer=OptimizerSettings(lr=4e-3), epochs=4, warmup=0.1, schedule="linear"
    )


class Updates(StrictModel):
    """How rollouts become updates."""

    algorithm: Algorithm
    optimizer: OptimizerSettings


class Settings(StrictModel):
    """How every run is made."""

    checkpoint: Path = CHECKPOINT
    base: str = "reference"
    """The base model's name in events and adapters."""
    diagnosis: Annotated[int, Field(ge=1)] = 256
    """Rollouts on traffic that are recorded and diagnosed."""
    rule: Rule = Rule()
    budgets: tuple[int, ...] = (1024, 2048, 3072, 6144, 9216)
    """Rollouts, diagnosis and references included, after which the policy is evaluated."""
    groups: Annotated[int, Field(ge=1)] = 8
    """Tasks per step."""
    size: Annotated[int, Field(ge=2)] = 8
    """Rollouts per task."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    """Most tokens of one answer."""
    replay: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the groups that are on generators which are no targets."""
    siblings: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the replay that siblings have; the rest is as passed traffic was."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.8
    """Momentum of the pass rates that quotas follow."""
    updates: Updates = Updates(
        algorithm=Algorithm(
            loss=LossConfig(kl=KlConfig(estimator="k2", beta=0.1)),
            filter=FilterConfig(informative=False),
        ),
        optimizer=OptimizerSettings(lr=2e-3),
    )
    """Settings of GRPO from the base. Groups of one verdict stay for their divergence from the base
    alone: on replay, that is what keeps plain kinds as they are."""
    refining: Updates = Updates(algorithm=Algorithm(), optimizer=OptimizerSettings(lr=4e-4))
    """Settings of GRPO after a warm start, which a penalty for leaving the base would undo, as
    larger steps did on development seeds."""
    lora: LoraSettings = LoraSettings(rank=16, alpha=32)
    """The rank that serving reckons with."""
    limits: Limits = Limits(kl=None, entropy_factor=None, malformed_factor=None)
    """Whether an adapter is good is what the experiment asks: none is stopped early."""
    warm_start: WarmStartSettings = WarmStartSettings()
    tasks: Annotated[int, Field(ge=1)] = 64
    """Held-out, per capability."""
    trials: Annotated[int, Field(ge=1)] = 3
    """Per held-out task."""

    @property
    def digest(self) -> str:
        """sha256 of all of them; where the checkpoint lies is left out."""
        return sha256(exact_json(self.model_dump(mode="json", exclude={"checkpoint"})))


SETTINGS: Final = Settings()

WEAK: Final[Mapping[str, tuple[str, ...]]] = {
    "main": recipe.WEAK,
    "unseen": ("handover",),
}
"""Capability set -> the rare kinds of its traffic. `main` are those the model card names weak;
`unseen` follows by the rule of `unseen` from figures on development seeds, and no development run
has trained on it."""

_DEMO_WEAK: Final = read_mixture(WEAK_FILE)
FOUR_WEAK: Final[Mapping[str, float]] = {
    kind: _DEMO_WEAK[kind] for kind in dict.fromkeys((*recipe.WEAK, *_DEMO_WEAK))
}
"""Kind -> its share of the demo's traffic with four weak kinds, these first: what is drawn follows
from the order."""

UNSEEN: Final = (0.15, 0.60)
"""pass^1 on development seeds of a kind that enters the unseen set."""


def unseen(passed: Mapping[str, float]) -> tuple[str, ...]:
    """The rule: every kind that is neither plain nor of the main set and whose pass^1 lies within
    `UNSEEN`."""
    low, high = UNSEEN
    known = {*PLAIN, *WEAK["main"]}
    return tuple(kind for kind, rate in passed.items() if kind not in known and low <= rate <= high)


def traffic(capabilities: str, share: float) -> dict[str, float]:
    """Kind -> its share of the traffic: the weak ones have `share`, in equal parts."""
    weak = WEAK[capabilities]
    return dict.fromkeys(PLAIN, (1 - share) / len(PLAIN)) | dict.fromkeys(weak, share / len(weak))
