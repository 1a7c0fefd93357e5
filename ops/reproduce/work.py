"""What stages of every table do."""

from collections.abc import Iterable, Sequence

from ops.reproduce.commands import Document, Folder, StageFailure, run_command
from ops.reproduce.settings import Served
from ops.reproduce.stages import Stage


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
