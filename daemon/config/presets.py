"""Published algorithms as presets, each with its source and the points that it leaves open.
`*_paper` is a publication's algorithm, `*_code` that of its released program; they differ. A preset
defines the loss, the advantages and the filter. The learning rate depends on the model: 1e-3 to
2e-3 for LoRA below 10 M parameters (measured), about 1e-5 at 4 B (from publications). A preset may
have its source's recipe, which `training.recipe` uses instead of the numbers in the settings."""

from dataclasses import dataclass
from typing import Final

from events.algorithm import (
    AdvantageConfig,
    Algorithm,
    FilterConfig,
    KlConfig,
    LossConfig,
    RewardScale,
    TisConfig,
)
from events.errors import KintsugiError
from events.jobs import LoraSettings


class UnknownPreset(KintsugiError):
    """No preset has this name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The numbers with which the source trained, apart from the algorithm."""

    groups: int
    """Tasks per update."""
    size: int
    """Rollouts per task."""
    lr: float
    lora: LoraSettings


@dataclass(frozen=True, slots=True)
class Preset:
    """An algorithm, its source, and in `open` the points where the source is silent or differs."""

    algorithm: Algorithm
    source: str
    open: str = ""
    recipe: Recipe | None = None
    """None where no release of the source is known with all of these numbers."""


_EVERYTHING: Final = FilterConfig(informative=False)
_DYNAMIC: Final = FilterConfig(refill=3)
"""Filter that replaces dropped groups, at most three times; that limit is not the source's."""

PRESETS: Final[dict[str, Preset]] = {
    "sentinel": Preset(
        Algorithm(
            loss=LossConfig(
                lo=0.2, hi=0.28, tis=TisConfig(mode="truncate", hi=2.0), kl=KlConfig(beta=0.01)
            ),
            advantage=AdvantageConfig(eps=1e-6),
        ),
        "arXiv 2606.12908: GRPO with TIS, KL, asymmetric clip; groups of one verdict are dropped",
        "its constants are not public: clip and TIS are those of slime's tau-bench recipe, the KL "
        "coefficient is ours",
    ),
    "trace_paper": Preset(
        Algorithm(loss=LossConfig(lo=0.2, hi=0.2), advantage=AdvantageConfig(ddof=0, eps=1e-8)),
        "arXiv 2604.05336: token ratios, mean of each trajectory, population deviation, no KL",
        "clip and epsilon are not in the paper; the recipe is the default of its program",
        Recipe(
            groups=4,
            size=16,
            lr=1e-5,
            lora=LoraSettings(
                rank=16, alpha=16.0, targets=("q_proj", "k_proj", "v_proj", "o_proj")
            ),
        ),
    ),
    "trace_code": Preset(
        Algorithm(
            loss=LossConfig(level="sequence_sum", lo=0.28, hi=0.28),
            advantage=AdvantageConfig(scale="batch", eps=1e-8),
            unit="turn",
        ),
        "github.com/ScalingIntelligence/TRACE@087715d, train/train_grpo.py and ppo.py",
        "its dropping of turns with calls, cutting of old results and re-tokenising are left out",
    ),
    "sr_paper": Preset(
        Algorithm(
            loss=LossConfig(level="sequence", lo=0.2, hi=0.28),
            filter=FilterConfig(on="reward", min_dispersion=1e-6, min_advantage=1e-6, refill=3),
        ),
        "arXiv 2509.18847, equations 26-29: GSPO's ratios with DAPO's clip and filter, no KL; "
        "groups whose rewards differ, rollouts whose advantage is not 0",
        "both thresholds are not in the paper: 1e-6 is above the rounding of a reward; nor is the "
        "bound of redraws, which is its program's",
    ),
    "sr_code": Preset(
        Algorithm(
            loss=LossConfig(
                level="sequence",
                lo=0.2,
                hi=0.28,
                aggregation="token-mean",
                kl=KlConfig(estimator="k3", beta=0.05),
            ),
            advantage=AdvantageConfig(eps=1e-4),
            filter=FilterConfig(on="reward", refill=3, fallback="original"),
            repair="release",
            overlong="keep",
        ),
        "github.com/MeiGen-AI/Tool-Reflection-Bench@291bb3e, grpo_training_script.py (ms-swift)",
        "its token mean is per micro-batch, ours per step; it goes back to the unfiltered batch "
        "where too few groups are left, ours where none is",
    ),
    "areal_paper": Preset(
        Algorithm(loss=LossConfig(lo=0.4, hi=0.4, aggregation="token-mean"), filter=_DYNAMIC),
        "arXiv 2601.22607: token mean over the batch, group advantages, dynamic filter",
        "the clip is not in the paper; this is the released configuration's",
    ),
    "areal_code": Preset(
        Algorithm(
            loss=LossConfig(
                lo=0.4, hi=0.4, aggregation="token-mean", tis=TisConfig(mode="mask", hi=5.0)
            ),
            advantage=AdvantageConfig(
                center="batch",
                scale="batch",
                eps=1e-5,
                weight="token",
                reward=RewardScale(offset=0.5, factor=10.0),
            ),
            filter=FilterConfig(informative=False, most=0.95),
            overlong="keep",
            unit="turn",
        ),
        "github.com/inclusionAI/AReaL@4aef98d, examples/tau2",
        "an error of the infrastructure is reward 0 there and no rollout here",
    ),
    "gspo": Preset(
        Algorithm(
            loss=LossConfig(level="sequence", lo=3e-4, hi=4e-4),
            filter=_EVERYTHING,
            overlong="keep",
            mini_batches=4,
        ),
        "GSPO, arXiv 2507.18071, section 5.1",
    ),
    "dapo": Preset(
        Algorithm(
            loss=LossConfig(lo=0.2, hi=0.28, aggregation="token-mean"),
            filter=_DYNAMIC,
            overlong="mask",
        ),
        "DAPO, arXiv 2503.14476: asymmetric clip, token mean of the step, dynamic sampling, "
        "overlong filter, no KL",
        "its soft penalty of length belongs to the reward",
    ),
    "drgrpo": Preset(
        Algorithm(
            loss=LossConfig(lo=0.2, hi=0.2, aggregation="dr"),
            advantage=AdvantageConfig(scale="none"),
            filter=_EVERYTHING,
            overlong="keep",
        ),
        "Dr. GRPO, arXiv 2503.20783: sums over a constant length, no scaling by the deviation",
        "set loss.t_max to the longest sequence that may be sampled; else it is the step's longest",
    ),
}


def build_loop_algorithm(kl: float) -> Algorithm:
    """Return the loop's default algorithm: `sentinel` with a KL penalty k2 of weight `kl`. It keeps
    groups of one verdict with advantages of exactly 0 (ADR 0054), to preserve other kinds of task
    on replay (docs/learning.md). With weight 0 it drops such groups, as `sentinel` does."""
    own = PRESETS["sentinel"].algorithm
    penalty = KlConfig(estimator="k2", beta=kl)
    kept = FilterConfig(informative=kl == 0, uniform="zero")
    return own.model_copy(
        update={"loss": own.loss.model_copy(update={"kl": penalty}), "filter": kept}
    )


def preset(name: str) -> Algorithm:
    """Return the algorithm of this name. Raises UnknownPreset."""
    if name not in PRESETS:
        raise UnknownPreset(f"there is no preset {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name].algorithm
