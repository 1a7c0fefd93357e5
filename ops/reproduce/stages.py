"""Stages of a table: what each does, its command, its cost, its result.

A stage leaves `stages/NAME.json` in the folder, whole or absent, and is not run again; those that
only look (`check`), build (`report`) or are forgotten by an endpoint that starts again (`load`) are
run every time. Within a stage, evaluations go on from their log and jobs from their journal.
"""

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ops.reproduce.commands import Document, Folder, StageFailure, run_command
from ops.reproduce.settings import EnvironmentDefaults, Served

P = TypeVar("P", bound=Served)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step from the base to the table."""

    name: str
    action: str
    """What it does, in words."""
    command: tuple[str, ...]
    """What does it, to be run by hand as well."""
    run: Callable[[], Document]
    episodes: int = 0
    """Episodes that a policy plays in it."""
    tokens: int | None = None
    """Tokens that it writes in one of them, an assumption; None: the environment's."""
    trains: bool = False
    """Whether these are trained on, which takes about as long again."""
    repeated: bool = False
    """Whether it is run every time."""


@dataclass(frozen=True, slots=True)
class Table(Generic[P]):
    """A published table: how its plan comes from options, and its stages from the plan."""

    name: str
    plan: type[P]
    environments: Mapping[str, EnvironmentDefaults]
    build_plan: Callable[[argparse.Namespace], P]
    """Raises WrongUsage."""
    count_evaluated: Callable[[P], int]
    """Returns the number of evaluated tasks. Raises WrongUsage where the real ones are missing."""
    build_stages: Callable[[P, Folder, int], list[Stage]]
    """Takes that number."""


def describe(
    plan: Served, folder: Folder, stages: Sequence[Stage], tasks: int, tokens: int, rate: float
) -> str:
    """Return every stage's command and estimated cost, of which `tokens` per episode and the `rate`
    of tokens per second are assumptions."""
    assumed = (
        f"# {tasks} evaluated tasks of {plan.env}; an episode is taken to write {tokens:,} tokens "
        f"and the endpoint {rate:,.0f} tokens per second; training on a rollout is taken to take "
        "as long as sampling it. All three are assumptions, not measurements."
    )
    lines = [
        assumed,
        f"export KINTSUGI_CONFIG={shlex.quote(str(folder.configuration))}",
    ]
    hours = 0.0
    for stage in stages:
        written = tokens if stage.tokens is None else stage.tokens
        own = stage.episodes * written / rate / 3600 * (2 if stage.trains else 1)
        hours += own
        cost = f"; {stage.episodes:,} episodes, {own:.2f} h" if stage.episodes else ""
        lines += ["", f"# {stage.name}: {stage.action}{cost}", shlex.join(stage.command)]
    return "\n".join([*lines, "", f"# all: {hours:.2f} h"])


def check(plan: Served) -> Document:
    """Compare checkpoint and endpoint. Raises WrongCheckpoint, ReplicaError."""
    from ops.reproduce.endpoint import check_endpoint

    return {"nats": check_endpoint(plan)}


def train(folder: Folder, policy: str, command: Sequence[str]) -> Document:
    """Run a job. Raises StageFailure, also for a competence gap, which leaves no adapter."""
    outcome = run_command(folder, command)
    if outcome["outcome"] != "trained":
        raise StageFailure(f"the {policy} job left no adapter: {outcome['reason']}")
    return outcome


def load(plan: Served, folder: Folder, names: Iterable[tuple[str, str]]) -> Document:
    """Load the adapter of each policy under its name. Raises ReplicaError, NotProven,
    BadAdapter."""
    from ops.reproduce.endpoint import load_adapter

    return {policy: load_adapter(plan, name, folder.adapter(policy)) for policy, name in names}


def build_own_command(table: str, folder: Folder, stage: str) -> tuple[str, ...]:
    """Return the command that runs a stage alone."""
    options = ("--out", str(folder.path), "--only", stage)
    return ("python", "-m", "ops.reproduce", table, *options)


def build_check(table: str, plan: Served, folder: Folder) -> Stage:
    """Return the stage that comes first."""
    return Stage(
        "check",
        "compare the checkpoint's answers to probes with the endpoint's",
        build_own_command(table, folder, "check"),
        lambda: check(plan),
        repeated=True,
    )


def build_training(
    folder: Folder, policy: str, action: str, rollouts: int, tokens: int | None = None
) -> Stage:
    """Return the stage that trains a policy; `tokens` are those of a rollout, where they are not
    the environment's."""
    command = (
        "python", "-m", "daemon.solver", str(folder.spec(policy)), "--out", str(folder.job(policy)),
    )  # fmt: skip
    return Stage(
        f"train-{policy}", action, command, lambda: train(folder, policy, command),
        episodes=rollouts, tokens=tokens, trains=True,
    )  # fmt: skip
