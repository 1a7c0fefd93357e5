"""One step spread over processes: each scores its share of the rows, gradients are added up.

Every process holds the whole model and is given the same rollouts; it computes the same advantages
and denominators from them, so nothing but gradients and figures has to be exchanged. Without a
process group (`torchrun` and `torch.distributed.init_process_group` make one) all of this does
nothing. Not covered: a base model too large for one device.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as group
from torch import Tensor

T = TypeVar("T")


def count() -> int:
    """How many processes work on a step."""
    return group.get_world_size() if _together() else 1


def share(items: Sequence[T]) -> Sequence[T]:
    """This process's part of what all of them have."""
    return items[group.get_rank() :: group.get_world_size()] if _together() else items


def begin_alike(parameters: Iterable[Tensor]) -> None:
    """Give every process the weights of the first."""
    if _together():
        for parameter in parameters:
            group.broadcast(parameter.data, src=0)


def add_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Sum each gradient over the processes; one that had no row has added 0."""
    if not _together():
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        group.all_reduce(parameter.grad)


def gathered(value: T) -> list[T]:
    """This value of every process, in their order."""
    if not _together():
        return [value]
    found: list[T | None] = [None] * count()
    group.all_gather_object(found, value)
    return [item for item in found if item is not None]


def _together() -> bool:
    return group.is_available() and group.is_initialized()
