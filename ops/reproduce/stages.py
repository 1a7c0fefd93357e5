"""Stages of a table with their commands, costs and results.

A stage writes `stages/NAME.json` in the folder atomically and is not run again. Three stages run
every time: `check`, `report`, and `load`, because a restarted endpoint forgets adapters. Within a
stage, evaluations continue from their log and jobs from their journal.
"""

import argparse
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ops.reproduce.commands import Document, Folder, StageFailure, run_command
from ops.reproduce.settings import EnvironmentDefaults, Served

P = TypeVar("P", bound=Served)


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a table, from the base to the report."""

    name: str
    action: str
    command: tuple[str, ...]
    """The stage's command, which may also be run by hand."""
    run: Callable[[], Document]
    episodes: int = 0
    tokens: int | None = None
    """Assumed tokens per episode; None for the environment's default."""
    trains: bool = False
    """Whether the stage also trains on the episodes, which doubles its estimated time."""
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Table(Generic[P]):
    """A published table: its plan from options, and its stages from the plan."""

    name: str
    plan: type[P]
    environments: Mapping[str, EnvironmentDefaults]
    build_plan: Callable[[argparse.Namespace], P]
    """Function from options to the plan. It raises WrongUsage."""
    count_evaluated: Callable[[P], int]
    """Function: plan -> number of evaluated tasks. Raises WrongUsage if real tasks are missing."""
    build_stages: Callable[[P, Folder, int], list[Stage]]
    """Function from (plan, folder, number of evaluated tasks) to the stages."""


def describe(
    plan: Served, folder: Folder, stages: Sequence[Stage], tasks: int, tokens: int, rate: float
) -> str:
    """Return a text of every stage's command and estimated cost. `tokens` per episode and `rate`
    (tokens per second) are assumptions."""
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


def _check(plan: Served) -> Document:
    """Compare checkpoint and endpoint. Raise WrongCheckpoint or ReplicaError."""
    from ops.reproduce.endpoint import check_endpoint

    return {"nats": check_endpoint(plan)}


def train(folder: Folder, policy: str, command: Sequence[str]) -> Document:
    """Run a job and return its outcome. Raise StageFailure if it makes no adapter."""
    outcome = run_command(folder, command)
    if outcome["outcome"] != "trained":
        raise StageFailure(f"the {policy} job left no adapter: {outcome['reason']}")
    return outcome


def load(plan: Served, folder: Folder, names: Iterable[tuple[str, str]]) -> Document:
    """Load and prove each policy's adapter. Raise ReplicaError, NotProven or BadAdapter."""
    from ops.reproduce.endpoint import load_adapter

    return {policy: load_adapter(plan, name, folder.adapter(policy)) for policy, name in names}


def build_own(
    table: str, folder: Folder, name: str, action: str, run: Callable[[], Document],
    episodes: int = 0, repeated: bool = False,
) -> Stage:  # fmt: skip
    """Return a stage that this program runs itself."""
    options = ("--out", str(folder.path), "--only", name)
    command = ("python", "-m", "ops.reproduce", table, *options)
    return Stage(name, action, command, run, episodes, repeated=repeated)


def build_command(
    folder: Folder, name: str, action: str, command: Sequence[str], episodes: int = 0,
    tokens: int | None = None,
) -> Stage:  # fmt: skip
    """Return a stage that runs a command, whose JSON object is the result."""
    run = partial(run_command, folder, command)
    return Stage(name, action, tuple(command), run, episodes, tokens)


def build_check(table: str, plan: Served, folder: Folder) -> Stage:
    """Return the stage that comes first."""
    action = "compare the checkpoint's answers to probes with the endpoint's"
    return build_own(table, folder, "check", action, partial(_check, plan), repeated=True)


def build_training(
    folder: Folder, policy: str, action: str, rollouts: int, tokens: int | None = None
) -> Stage:
    """Return the stage that trains a policy; `tokens` per rollout default to the environment's."""
    command = (
        "python", "-m", "daemon.solver", str(folder.spec(policy)), "--out", str(folder.job(policy)),
    )  # fmt: skip
    return Stage(
        f"train-{policy}", action, command, lambda: train(folder, policy, command),
        episodes=rollouts, tokens=tokens, trains=True,
    )  # fmt: skip
