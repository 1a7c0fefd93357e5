"""Check that the endpoint serves the checkpoint, and load adapters into the endpoint. Because a
name proves nothing, the checkpoint's answers to fixed probes are computed here and compared with
the endpoint's (daemon/adapters/fingerprint.py) before anything is played.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import verify
from daemon.adapters.fingerprint import COARSEST, distance, prompts
from daemon.engine.fingerprint import fingerprint
from daemon.serving.replica import NoAnswer, Replica
from events.errors import KintsugiError
from ops.reproduce.settings import Served


class WrongCheckpoint(KintsugiError):
    """The checkpoint is not the model that the endpoint serves."""


class UnusableDevice(KintsugiError):
    """The device is missing, or has no room for the checkpoint."""


def check_endpoint(plan: Served) -> float:
    """Check that the endpoint loads adapters and serves the checkpoint; return the distance of
    their answers in nats. Raise WrongCheckpoint, UnusableDevice or ReplicaError."""
    with Replica(plan.base_url) as replica:
        replica.examine()
        models = replica.list_models()
        if plan.model not in models.bases:
            raise WrongCheckpoint(
                f"{plan.base_url} serves {', '.join(sorted(models.bases))}, and no {plan.model!r}; "
                "give its name there by --model"
            )
        model: Any = AutoModelForCausalLM.from_pretrained(
            plan.checkpoint, dtype=getattr(torch, plan.dtype), local_files_only=True
        )
        try:
            model.to(plan.device)
        except (
            AssertionError,
            RuntimeError,
        ) as error:  # torch lacks the device, or its memory is full
            raise UnusableDevice(
                f"{plan.checkpoint} cannot be held by the device {plan.device}: {error}; give "
                "another --device and --out"
            ) from error
        probes = prompts(int(model.config.vocab_size))
        try:
            seen = replica.score(plan.model, probes)
        except NoAnswer as error:
            # For example token ids beyond its vocabulary.
            raise WrongCheckpoint(
                f"{plan.base_url} refuses the probes of {plan.checkpoint}: {error}"
            ) from error
        gap = distance(seen, fingerprint(model, probes))
    if not gap <= COARSEST:
        raise WrongCheckpoint(
            f"{plan.model} at {plan.base_url} answers {gap:.3f} nats from what {plan.checkpoint} "
            f"computes, and {COARSEST} is the most that precision explains; give the checkpoint "
            "that the endpoint was started with"
        )
    return gap


def load_adapter(plan: Served, name: str, folder: Path) -> float:
    """Load an adapter unless it is loaded, and prove it; return the distance of its answers from
    those in training, in nats. Raise WrongCheckpoint, ReplicaError, NotProven or BadAdapter."""
    expected = verify(folder).fingerprint
    if expected is None:
        raise WrongCheckpoint(f"{folder} has no fingerprint; train it again")
    with Replica(plan.base_url) as replica:
        tolerance = replica.measure_tolerance(expected)
        replica.load(name, folder)
        return replica.prove(name, expected, tolerance).distance
