"""Spread one training step over processes: each scores its share of the rows, gradients are summed.

Every process gets the same rollouts and computes the same advantages and denominators, so only
gradients and figures are exchanged. Every process holds the whole base and adapter, so clipping,
optimizer and saving work as in a single process. Without a process group (torchrun) these functions
do nothing.

In a job the first process tells the others (follower.py) of each new learner and each update, after
`join_group`. A process that loses another one exits, so that none waits for ever. Not covered: a
base that is too large for one process. Tested with two processes on a CPU (gloo), never on a GPU or
over several machines.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as group
from torch import Tensor

from daemon.solver.trajectory import Trajectory
from events.errors import KintsugiError
from events.jobs import JobSpec

T = TypeVar("T")

_PATIENCE: Final = timedelta(days=30)
"""Longest wait for a message; long because the first process may play rollouts for hours."""


class ProcessLoss(KintsugiError):
    """Another process of this job has ended."""


@dataclass(frozen=True, slots=True)
class Anew:
    """Message: make a learner; its weights come from the first process."""

    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Update:
    """Message: take a step on these trajectories."""

    batch: tuple[Trajectory, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Message: the job is over."""

    code: int


Word = Anew | Update | End


class _Words:
    channel: group.ProcessGroup | None = None


@contextmanager
def join_group() -> Iterator[int]:
    """Group torchrun's processes inside the block; yield this one's rank. Raise ProcessLoss."""
    with _exchange():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        group.init_process_group()
        _Words.channel = group.new_group(backend="gloo", timeout=_PATIENCE)
    try:
        yield group.get_rank()
    finally:
        _leave()


def broadcast(word: Word) -> None:
    """Send a message from the first process to the others, if any. Raise ProcessLoss."""
    if _Words.channel is not None:
        with _exchange():
            group.broadcast_object_list([word], src=0, group=_Words.channel)


def receive() -> Word:
    """Wait for the first process's next message, and return it. Raise ProcessLoss."""
    heard: list[Any] = [None]
    with _exchange():
        group.broadcast_object_list(heard, src=0, group=_Words.channel)
    word: Word = heard[0]
    return word


@contextmanager
def _exchange() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        _leave()
        raise ProcessLoss(
            f"another process of this job ended before its time ({str(error)[:200]}); its own "
            "stderr says why; the same command goes on"
        ) from error


def _leave() -> None:
    """Close the connections, so that processes waiting for this one get an error."""
    _Words.channel = None
    if _together():
        group.destroy_process_group()


def count() -> int:
    """Return the number of processes."""
    return group.get_world_size() if _together() else 1


def share(items: Sequence[T]) -> Sequence[T]:
    """Return the items that this process has to handle: every n-th of them, for n processes."""
    return items[group.get_rank() :: group.get_world_size()] if _together() else items


def begin_alike(parameters: Iterable[Tensor]) -> None:
    """Copy the first process's weights into every process."""
    if _together():
        with _exchange():
            for parameter in parameters:
                group.broadcast(parameter.data, src=0)


def add_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Sum each gradient over the processes; a process without rows adds 0."""
    if not _together():
        return
    with _exchange():
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            group.all_reduce(parameter.grad)


def gather(value: T) -> list[T]:
    """Return the `value` of each process, in the order of their ranks."""
    if not _together():
        return [value]
    values: list[T | None] = [None] * count()
    with _exchange():
        group.all_gather_object(values, value)
    return [item for item in values if item is not None]


def _together() -> bool:
    return group.is_available() and group.is_initialized()
