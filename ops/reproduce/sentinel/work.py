"""What the stages do, each on what those before it left in the folder."""

from typing import Any

from ops.reproduce.commands import Document, Folder, run_command
from ops.reproduce.sentinel.commands import Policy, build_evaluation
from ops.reproduce.sentinel.settings import Reproduction


def record(plan: Reproduction, folder: Folder) -> Document:
    """Record traffic of the base. Raises EndpointUnavailable, EndpointRefusal."""
    from ops.reproduce.sentinel.training import record_traffic

    return {"rollouts": record_traffic(plan, folder.training)}


def diagnose(_plan: Reproduction, folder: Folder) -> Document:
    """Close a round. Raises StageFailure."""
    command = ["kintsugi", "diagnose", "--home", str(folder.training), "--json"]
    return run_command(folder, command)


def write_tasks(plan: Reproduction, folder: Folder) -> Document:
    """Write both jobs' specs. Raises NoJob."""
    from ops.reproduce.commands import write_model
    from ops.reproduce.sentinel.training import plan_jobs

    jobs = plan_jobs(plan, folder.training)
    write_model(folder.spec("general"), jobs.general)
    write_model(folder.spec("targeted"), jobs.targeted)
    return {
        "excluded": jobs.excluded,
        "rejected": jobs.rejected,
        "pools": {pool.name: len(pool.tasks) for pool in jobs.targeted.pools},
    }


def evaluate(plan: Reproduction, folder: Folder, policy: Policy) -> Document:
    """Evaluate a policy. Raises EndpointAway, StageFailure."""
    return run_command(folder, build_evaluation(plan, folder, policy))


def report(plan: Reproduction, folder: Folder) -> Document:
    """Build the table from the evaluations. Raises StageFailure."""
    from ops.reproduce.sentinel.table import build_table

    document: dict[str, Any] = build_table(plan, folder)
    return document
