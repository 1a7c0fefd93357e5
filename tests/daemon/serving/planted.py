"""Faults to be found by what an engine answers: each loads without complaint, and none may serve.

    name, expected = plant(replica, adapters)       NotProven must be raised by the proof of it

The directories say nothing of themselves, so the engine has no means to know.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from uuid import uuid4

import torch
from safetensors.torch import load_file, save_file

from daemon.adapters.directory import WEIGHTS
from daemon.adapters.fingerprint import Expectation
from daemon.serving.replica import Replica
from ops.random_adapters import Adapters


def load_adapter(replica: Replica, folder: Path) -> str:
    """Served under a name that was never used."""
    name = f"a-{uuid4().hex[:8]}"
    replica.load(name, folder)
    return name


def base_weights(replica: Replica, adapters: Adapters) -> tuple[str, Expectation]:
    """A fresh adapter computes what its base does."""
    return load_adapter(replica, adapters["fresh-bare"]), adapters.read_fingerprint("v2")


def base_itself(replica: Replica, adapters: Adapters) -> tuple[str, Expectation]:
    return replica.list_models().base, adapters.read_fingerprint("v2")


def old_version(replica: Replica, adapters: Adapters) -> tuple[str, Expectation]:
    return load_adapter(replica, adapters["v1-bare"]), adapters.read_fingerprint("v2")


def wrong_name(replica: Replica, adapters: Adapters) -> tuple[str, Expectation]:
    """Two names that lead to each other's files."""
    load_adapter(replica, adapters["v2-bare"])
    return load_adapter(replica, adapters["v3-bare"]), adapters.read_fingerprint("v2")


def wrong_base(replica: Replica, adapters: Adapters) -> tuple[str, Expectation]:
    return load_adapter(replica, adapters["strange-bare"]), adapters.read_fingerprint("strange")


def wrong_tensor(replica: Replica, adapters: Adapters) -> tuple[str, Expectation]:
    """One of 56."""
    return load_adapter(replica, adapters["corrupted"]), adapters.read_fingerprint("v2")


Fault = Callable[[Replica, Adapters], tuple[str, Expectation]]

FAULTS: Final[dict[Fault, str]] = {
    base_weights: "nearest is its base",
    base_itself: "nearest is its base",
    old_version: "nearest is v1",
    wrong_name: "nearest is v3",
    wrong_base: "nats from what the adapter computes",
    wrong_tensor: "nats from what the adapter computes",
}
"""Plant -> what the proof says of it."""


def no_numbers(folder: Path) -> None:
    """All weights are NaN."""
    tensors = {n: torch.full_like(t, torch.nan) for n, t in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS)


def foreign_modules(folder: Path) -> None:
    """All weights are those of layers that the base has not."""
    tensors = load_file(folder / WEIGHTS)
    save_file({n.replace("layers.", "layers.9"): t for n, t in tensors.items()}, folder / WEIGHTS)
