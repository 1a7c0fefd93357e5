"""Files of the table, and the commands that evaluate a policy and a user."""

from pathlib import Path

from ops.reproduce.areal_sea.settings import TEMPERATURE, Reproduction
from ops.reproduce.commands import Folder, build_eval_command

USER = "user"


def name_stage(arm: str, domain: str) -> str:
    """Return the name of an arm's files and stages in a domain."""
    return f"{arm}-{domain}"


def find_tasks(folder: Folder, domain: str) -> Path:
    """Return the file of a domain's accepted tasks."""
    return folder.path / "tasks" / f"{domain}.jsonl"


def find_gate(folder: Folder, domain: str) -> Path:
    """Return the plan file of a user's gate. The dialogues are in a folder of the same name."""
    return folder.path / "gates" / f"{domain}.json"


def build_gate(folder: Folder, domain: str) -> list[str]:
    """Return the command that plays a user's gate."""
    plan = find_gate(folder, domain)
    return [
        "python", "-m", "daemon.methods.synthesis.users.trial", str(plan),
        "--out", str(plan.with_suffix("")),
    ]  # fmt: skip


def build_evaluation(plan: Reproduction, folder: Folder, arm: str, domain: str) -> list[str]:
    """Return the command that evaluates a policy."""
    tasks = [] if plan.counts.tasks is None else ["--tasks", str(plan.counts.tasks)]
    return build_eval_command(
        plan.select_domain(domain), folder, plan.name_policy(arm, domain),
        ["--split", plan.split, *tasks], plan.counts.trials, TEMPERATURE,
    )  # fmt: skip
