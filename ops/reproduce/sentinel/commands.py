"""The policies of the table, and the command that evaluates one."""

from typing import Any, Final, Literal

from ops.reproduce.commands import Folder, build_eval_command
from ops.reproduce.sentinel.settings import TEMPERATURE, Reproduction

Policy = Literal["base", "general", "targeted"]
POLICIES: Final[tuple[Policy, ...]] = ("base", "general", "targeted")


def name_policy(plan: Reproduction, policy: Policy) -> str:
    """Return a policy's name at the endpoint."""
    return plan.model if policy == "base" else f"sentinel-{policy}-{plan.digest[:8]}"


def build_evaluation(plan: Reproduction, folder: Folder, policy: Policy) -> list[str]:
    """Return the command that evaluates a policy."""
    tasks = (
        ["--mix", ",".join(f"{kind}={share:g}" for kind, share in plan.traffic.items())]
        if plan.traffic
        else ["--split", plan.split]
    )
    if plan.counts.tasks is not None:
        tasks += ["--tasks", str(plan.counts.tasks)]
    name = name_policy(plan, policy)
    return build_eval_command(plan, folder, name, tasks, plan.counts.trials, TEMPERATURE)


def select_evaluated(plan: Reproduction) -> dict[str, Any]:
    """Return the fields of the selection of evaluated tasks, of the split or generated."""
    first = {"first": plan.counts.tasks}
    return first | ({"mix": plan.traffic} if plan.traffic else {"split": plan.split})
