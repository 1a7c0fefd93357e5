"""Every setting of the screen, frozen: committed before the first reported run. A result names the
commit and the digest of these.

A configuration is one change from `today`, what jobs of the loop did before ADR 0054: GRPO with an
asymmetric clip, a penalty k2 of .1 and groups of one verdict kept with the advantages of their
rewards. What settings can say is said by settings; the rest replaces the algorithm.
`sentinel_k2_zero` is what they do since; the two that begin with `loop` put a warm start before it,
and those that begin with `rounds` close rounds within it (training.rounds). Those that begin with
`areal` are no change from it: AReaL-SEA's preset with its shapes of a batch (arXiv 2601.22607, its
ablation; tasks x rollouts of each, which the paper does not say), with its filter and without.

A mixture is the traffic that all of it is tried on: the demo's, where one kind is weak, or `weak`,
where four are.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from daemon.config.presets import build_loop_algorithm, preset
from daemon.engine.reference.weights import CHECKPOINT
from events.algorithm import Algorithm, FilterConfig, KlConfig, LossConfig, TisConfig
from events.canonical import exact_json, sha256
from events.messages import StrictModel
from ops.demo.mixture import MIX
from ops.demo.place import SIZES
from ops.learning.settings import FOUR_WEAK

BASE: Final = "base"
"""Name of the run that trains nothing."""
_DEMO: Final = SIZES["whole"]
_K2: Final = KlConfig(estimator="k2", beta=0.1)
_TIS: Final = TisConfig(mode="truncate", hi=2.0)


class Configuration(StrictModel):
    """What a job is told beside the common settings."""

    algorithm: Algorithm
    training: Mapping[str, Any] = {}
    """Further fields of the section `training`."""
    shows: Literal["oracle", "own", "both"] = "oracle"
    """What a warm start shows: references, the agent's recorded successes, or both."""


class Settings(StrictModel):
    """How every job is made."""

    checkpoint: Path = CHECKPOINT
    base: str = "reference"
    """The base model's name in events and adapters."""
    traffic: Mapping[str, float] = MIX
    """Kind of task -> its share, of the demo."""
    target: str = "two_writes"
    """The kind that the base is weak in."""
    recorded: Annotated[int, Field(ge=1)] = _DEMO.min_rollouts
    """Rollouts of the base on traffic, which are diagnosed."""
    written: Annotated[int, Field(ge=1)] = 32
    """Most tasks that are written for patterns: the loop's default."""
    targeted: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the job's groups on written tasks, as in the demo."""
    training: Mapping[str, Any] = {"rollouts": _DEMO.rollouts, "lr": 1e-3, "max_tokens": 64}
    """Of every job, as in the demo."""
    tasks: Annotated[int, Field(ge=1)] = 64
    """Held-out, per kind."""
    trials: Annotated[int, Field(ge=1)] = 3
    """Per held-out task."""

    @property
    def digest(self) -> str:
        """sha256 of all of them and of the configurations; where the checkpoint lies is left
        out."""
        own = self.model_dump(mode="json", exclude={"checkpoint"})
        changes = {name: item.model_dump(mode="json") for name, item in CONFIGURATIONS.items()}
        return sha256(exact_json([own, changes]))


_TODAY: Final = Algorithm(loss=LossConfig(kl=_K2), filter=FilterConfig(informative=False))
_SENTINEL: Final = preset("sentinel")
_LOOP: Final = build_loop_algorithm(0.1)
_ZERO: Final = FilterConfig(informative=False, uniform="zero")
_AREAL: Final = preset("areal_paper")
_LARGE: Final[Mapping[str, Any]] = {"rollouts": 3072}
"""Six updates of the largest batch, of the same budget for all shapes."""
_UNFILTERED: Final = _AREAL.model_copy(update={"filter": FilterConfig(informative=False)})

CONFIGURATIONS: Final[Mapping[str, Configuration]] = {
    "today": Configuration(algorithm=_TODAY),
    "zero": Configuration(algorithm=_TODAY.model_copy(update={"filter": _ZERO})),
    "sentinel": Configuration(algorithm=_SENTINEL),
    "sentinel_k2": Configuration(
        algorithm=_SENTINEL.model_copy(update={"loss": LossConfig(tis=_TIS, kl=_K2)})
    ),
    "sentinel_k2_zero": Configuration(
        algorithm=_SENTINEL.model_copy(
            update={"loss": LossConfig(tis=_TIS, kl=_K2), "filter": _ZERO}
        )
    ),
    "sentinel_zero": Configuration(algorithm=_SENTINEL.model_copy(update={"filter": _ZERO})),
    "warm_always": Configuration(algorithm=_TODAY, training={"warm_start": "always"}),
    "warm_own": Configuration(algorithm=_TODAY, training={"warm_start": "always"}, shows="own"),
    "warm_both": Configuration(algorithm=_TODAY, training={"warm_start": "always"}, shows="both"),
    "loop_warm_own": Configuration(algorithm=_LOOP, training={"warm_start": "always"}, shows="own"),
    "loop_warm_both": Configuration(
        algorithm=_LOOP, training={"warm_start": "always"}, shows="both"
    ),
    "warm_auto": Configuration(algorithm=_TODAY, training={"warm_start": "auto"}),
    "tis": Configuration(
        algorithm=_TODAY.model_copy(update={"loss": LossConfig(kl=_K2, tis=_TIS)})
    ),
    "clip_equal": Configuration(
        algorithm=_TODAY.model_copy(update={"loss": LossConfig(kl=_K2, lo=0.2, hi=0.2)})
    ),
    "rounds_1": Configuration(algorithm=_LOOP, training={"rounds": 1}),
    "rounds_2": Configuration(algorithm=_LOOP, training={"rounds": 2}),
    "rounds_4": Configuration(algorithm=_LOOP, training={"rounds": 4}),
    "areal_8x32": Configuration(algorithm=_AREAL, training={**_LARGE, "groups": 8, "size": 32}),
    "areal_16x16": Configuration(algorithm=_AREAL, training={**_LARGE, "groups": 16, "size": 16}),
    "areal_8x64": Configuration(algorithm=_AREAL, training={**_LARGE, "groups": 8, "size": 64}),
    "areal_8x32_unfiltered": Configuration(
        algorithm=_UNFILTERED, training={**_LARGE, "groups": 8, "size": 32}
    ),
    "areal_16x16_unfiltered": Configuration(
        algorithm=_UNFILTERED, training={**_LARGE, "groups": 16, "size": 16}
    ),
    "areal_8x64_unfiltered": Configuration(
        algorithm=_UNFILTERED, training={**_LARGE, "groups": 8, "size": 64}
    ),
}
"""Name -> one change from `today`, in the order in which they are worth most."""

SETTINGS: Final = Settings()

MIXTURES: Final[Mapping[str, Settings]] = {
    "demo": SETTINGS,
    "weak": Settings(traffic=FOUR_WEAK),
}
"""Name -> the settings of every job on that traffic."""
