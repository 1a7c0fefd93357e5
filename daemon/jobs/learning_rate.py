"""Learning rates and epochs by the size of the base, for settings that leave them unset: pure.

    training        2e-3 up to 10 M parameters, 1e-5 from 4 B on
    warm start      4e-3 up to 10 M, 1e-4 at 1 B, 2e-5 from 10 B on; 4 epochs up to 10 M, 2 from 1 B

Between these points the value is log-log linear in the number of parameters. The points at 10 M
were measured with LoRA on a model of 0.9 M (docs/LOG.md). The others come from publications, and
nothing above 10 M was verified.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from daemon.config.settings import Training

Points = Sequence[tuple[float, float]]
"""(number of parameters, value) pairs, in ascending order of the first."""

_TRAINING: Final[Points] = ((1e7, 2e-3), (4e9, 1e-5))
_WARM_START: Final[Points] = ((1e7, 4e-3), (1e9, 1e-4), (1e10, 2e-5))
_EPOCHS: Final[Points] = ((1e7, 4.0), (1e9, 2.0))


def compute_training_rate(parameters: int) -> float:
    """Return the learning rate of reinforcement learning for a base of this size."""
    return interpolate(_TRAINING, parameters)


def compute_warm_start_rate(parameters: int) -> float:
    """Return the learning rate of a warm start for a base of this size."""
    return interpolate(_WARM_START, parameters)


def compute_warm_start_epochs(parameters: int) -> int:
    """Return the epochs of a warm start for a base of this size."""
    return round(interpolate(_EPOCHS, parameters))


def interpolate(points: Points, parameters: int) -> float:
    """Return the value for this number of parameters: log-log linear between the points, constant
    outside. Raises ValueError for less than one parameter."""
    if parameters < 1:
        raise ValueError(f"a base has at least one parameter, not {parameters}")
    place = bisect_right([count for count, _ in points], parameters)
    if place == 0:
        return points[0][1]
    if place == len(points):
        return points[-1][1]
    (left, low), (right, high) = points[place - 1], points[place]
    part = log(parameters / left) / log(right / left)
    return low * exp(part * log(high / low))


def needs_size(training: "Training") -> bool:
    """Return whether an unset setting depends on the base's number of parameters."""
    if training.lr is None and training.recipe == "own":
        return True
    unset = None in (training.warm_start_lr, training.warm_start_epochs)
    return training.warm_start != "off" and unset
