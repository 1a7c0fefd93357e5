"""The policies of the table, and the command that evaluates one."""

from typing import Final, Literal

from ops.reproduce.commands import Folder, build_agent_options, build_user_options
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
    return [
        "kintsugi", "eval", "--env", plan.env, *tasks, "--trials", str(plan.counts.trials),
        *build_agent_options(plan), "--model", name_policy(plan, policy), "--base", plan.model,
        "--temperature", f"{TEMPERATURE:g}", "--max-tokens", str(plan.max_tokens),
        "--seed", str(plan.seed), "--concurrency", str(plan.concurrency), *build_user_options(plan),
        "--home", str(folder.evaluation), "--json",
    ]  # fmt: skip
