"""The learning algorithm as data; it lies with the contract (events/algorithm.py)."""

from events.algorithm import (
    AdvantageConfig,
    Aggregation,
    Algorithm,
    FilterConfig,
    KlConfig,
    Level,
    LossConfig,
    RewardScale,
    TisConfig,
)

__all__ = [
    "AdvantageConfig",
    "Aggregation",
    "Algorithm",
    "FilterConfig",
    "KlConfig",
    "Level",
    "LossConfig",
    "RewardScale",
    "TisConfig",
]
