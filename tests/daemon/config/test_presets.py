"""The published algorithms, pinned: a changed default may not change one of them unseen."""

import pytest

from daemon.config.presets import PRESETS, UnknownPreset, preset
from events.algorithm import Algorithm

# level, clip, aggregation, TIS (mode, bound), KL, centre, scale, ddof, eps, filter, unit
EXPECTED = {
    "sentinel": "token .2/.28 seq-mean truncate 2 k3 .01 group/group/1 1e-06 both rollout",
    "trace_paper": "token .2/.2 seq-mean none - k3 0 group/group/0 1e-08 both rollout",
    "trace_code": "sequence_sum .28/.28 seq-mean none - k3 0 group/batch/1 1e-08 both turn",
    "sr_paper": "sequence .2/.28 seq-mean none - k3 0 group/group/1 1e-06 reward 1e-06 1e-06 3 "
    "skip rollout",
    "sr_code": "sequence .2/.28 token-mean none - k3 .05 group/group/1 0.0001 reward 0 None 3 "
    "original rollout",
    "areal_paper": "token .4/.4 token-mean none - k3 0 group/group/1 1e-06 both rollout",
    "areal_code": "token .4/.4 token-mean mask 5 k3 0 batch/batch/1 1e-05 0.95 turn",
    "gspo": "sequence .0003/.0004 seq-mean none - k3 0 group/group/1 1e-06 all rollout",
    "dapo": "token .2/.28 token-mean none - k3 0 group/group/1 1e-06 both rollout",
    "drgrpo": "token .2/.2 dr none - k3 0 group/none/1 1e-06 all rollout",
}


def summary(algorithm: Algorithm) -> str:
    """What tells algorithms apart, on one line."""
    loss, advantage, groups = algorithm.loss, algorithm.advantage, algorithm.filter
    aggregation = loss.aggregation.replace("seq-mean-token-mean", "seq-mean")
    tis = "-" if loss.tis.mode == "none" else f"{loss.tis.hi:g}"
    kept = "both" if groups.informative else "all" if groups.most == 1 else f"{groups.most:g}"
    if groups.on == "reward":
        kept = (
            f"reward {groups.min_dispersion:g} {groups.min_advantage} {groups.refill} "
            f"{groups.fallback}"
        )
    return (
        f"{loss.level} {short(loss.lo)}/{short(loss.hi)} {aggregation} {loss.tis.mode} {tis} "
        f"{loss.kl.estimator} {short(loss.kl.beta)} "
        f"{advantage.center}/{advantage.scale}/{advantage.ddof} {advantage.eps:g} {kept} "
        f"{algorithm.unit}"
    )


def short(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".").removeprefix("0") or "0"


@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_what_its_source_says(name: str) -> None:
    assert summary(preset(name)) == EXPECTED[name]


def test_an_unknown_preset_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownPreset, match=r"'ppo'; there are areal_code, .*trace_paper"):
        preset("ppo")
