"""What the stages do, each on what those before it left in the folder."""

from collections.abc import Sequence
from typing import Any

from ops.reproduce.commands import (
    Document,
    Folder,
    Policy,
    StageFailure,
    build_evaluation,
    name_policy,
    run_command,
)
from ops.reproduce.settings import Reproduction


def check(plan: Reproduction, _folder: Folder) -> Document:
    """Compare checkpoint and endpoint. Raises WrongCheckpoint, ReplicaError."""
    from ops.reproduce.endpoint import check_endpoint

    return {"nats": check_endpoint(plan)}


def record(plan: Reproduction, folder: Folder) -> Document:
    """Record traffic of the base. Raises EndpointUnavailable, EndpointRefusal."""
    from ops.reproduce.training import record_traffic

    return {"rollouts": record_traffic(plan, folder.training)}


def diagnose(_plan: Reproduction, folder: Folder) -> Document:
    """Close a round. Raises StageFailure."""
    command = ["kintsugi", "diagnose", "--home", str(folder.training), "--json"]
    return run_command(folder, command)


def write_tasks(plan: Reproduction, folder: Folder) -> Document:
    """Write both jobs' specs. Raises NoJob."""
    from ops.learning.results import write_document
    from ops.reproduce.training import plan_jobs

    jobs = plan_jobs(plan, folder.training)
    write_document(folder.spec("general"), jobs.general)
    write_document(folder.spec("targeted"), jobs.targeted)
    return {
        "excluded": jobs.excluded,
        "rejected": jobs.rejected,
        "pools": {pool.name: len(pool.tasks) for pool in jobs.targeted.pools},
    }


def train(folder: Folder, policy: Policy, command: Sequence[str]) -> Document:
    """Run a job. Raises StageFailure, also for a competence gap, which leaves no adapter."""
    outcome = run_command(folder, command)
    if outcome["outcome"] != "trained":
        raise StageFailure(f"the {policy} job left no adapter: {outcome['reason']}")
    return outcome


def load(plan: Reproduction, folder: Folder) -> Document:
    """Load both adapters. Raises ReplicaError, NotProven, BadAdapter."""
    from ops.reproduce.endpoint import load_adapter

    trained: tuple[Policy, ...] = ("general", "targeted")
    return {
        policy: load_adapter(plan, name_policy(plan, policy), folder.adapter(policy))
        for policy in trained
    }


def evaluate(plan: Reproduction, folder: Folder, policy: Policy) -> Document:
    """Evaluate a policy. Raises EndpointAway, StageFailure."""
    return run_command(folder, build_evaluation(plan, folder, policy))


def report(plan: Reproduction, folder: Folder) -> Document:
    """Build the table from the evaluations. Raises StageFailure."""
    from ops.reproduce.table import build_table

    document: dict[str, Any] = build_table(plan, folder)
    return document
