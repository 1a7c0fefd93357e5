"""The stages of the table, in order; every domain has all of them."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Literal

from ops.reproduce.areal_sea.commands import USER, build_evaluation, build_gate, name_stage
from ops.reproduce.areal_sea.settings import ARMS, PRESET, REINFORCED, TRAINED, Arm, Reproduction
from ops.reproduce.commands import Document, Folder, StageFailure, run_command
from ops.reproduce.options import count_tasks
from ops.reproduce.stages import Stage, build_check, build_own_command, build_training, train

NAME: Final = "areal-sea"
_UNTAUGHT: Final = re.compile(r"none of \d+ rollouts taught anything.*")
"""Reason of a job without any informative group (daemon/solver/job.py)."""


def count_domain(plan: Reproduction, domain: str) -> int:
    """Return the number of evaluated tasks of a domain. Raise WrongUsage."""
    own = plan.select_domain(domain)
    return count_tasks(own, split=plan.split, first=plan.counts.tasks)


def build_stages(plan: Reproduction, folder: Folder, tasks: int) -> list[Stage]:
    """Return all stages; `tasks` is the number of evaluated ones of all domains."""
    own = partial(build_own_command, NAME, folder)
    return [
        build_check(NAME, plan, folder),
        *(stage for domain in plan.domains for stage in _build_domain(plan, folder, domain)),
        Stage("report", "the table", own("report"), partial(_report, plan, folder),
              repeated=True),
    ]  # fmt: skip


def _build_domain(plan: Reproduction, folder: Folder, domain: str) -> Iterator[Stage]:
    counts, tasks = plan.counts, count_domain(plan, domain)
    own = partial(build_own_command, NAME, folder)
    writer = plan.proposer_model or "rules and templates"
    specs, load = f"write-specs-{domain}", f"load-{domain}"
    gate = build_gate(folder, domain)
    yield _evaluate(plan, folder, "base", domain, tasks)
    yield Stage(
        f"write-tasks-{domain}",
        f"{counts.plans} plans and {counts.written:,} tasks of {domain} by {writer}: synthesis, "
        "verification, rollout by the oracle, attribution, reflection",
        own(f"write-tasks-{domain}"), partial(_write, "tasks", plan, folder, domain),
    )  # fmt: skip
    yield Stage(
        specs, "the specs of the jobs of agent and user", own(specs),
        partial(_write, "jobs", plan, folder, domain),
    )  # fmt: skip
    user = name_stage(USER, domain)
    action = f"supervised training of the user on at most {counts.dialogues:,} dialogues"
    yield build_training(folder, user, action, rollouts=0)
    yield Stage(
        f"write-gate-{domain}", "the plan of the user's gate", own(f"write-gate-{domain}"),
        partial(_write, "gate", plan, folder, domain),
    )  # fmt: skip
    yield Stage(
        f"gate-{domain}", f"the user's gate of {counts.gate} dialogues with the oracle",
        tuple(gate), partial(run_command, folder, gate), counts.gate,
    )  # fmt: skip
    yield build_training(folder, name_stage("sft", domain), ARMS["sft"], rollouts=0)
    for arm in REINFORCED:
        yield _reinforce(plan, folder, arm, domain)
    yield Stage(
        load, "load the adapters at the endpoint, and prove that they answer", own(load),
        partial(_load, plan, folder, domain), repeated=True,
    )  # fmt: skip
    for arm in TRAINED:
        yield _evaluate(plan, folder, arm, domain, tasks)


def _reinforce(plan: Reproduction, folder: Folder, arm: Arm, domain: str) -> Stage:
    name = name_stage(arm, domain)
    action = f"{ARMS[arm]}, preset {PRESET}"
    return replace(
        build_training(folder, name, action, plan.counts.rollouts),
        run=partial(_try_job, folder, name),
    )


def _evaluate(plan: Reproduction, folder: Folder, arm: Arm, domain: str, tasks: int) -> Stage:
    command = build_evaluation(plan, folder, arm, domain)
    return Stage(
        f"evaluate-{name_stage(arm, domain)}", f"pass^1 of {arm} in {domain}", tuple(command),
        partial(_play, folder, arm, domain, command), tasks * plan.counts.trials,
    )  # fmt: skip


def _play(folder: Folder, arm: Arm, domain: str, command: list[str]) -> Document:
    lacking = _find_lacking(folder, arm, domain)
    return {"lacking": lacking} if lacking else run_command(folder, command)


def _find_lacking(folder: Folder, arm: Arm, domain: str) -> str:
    if arm not in REINFORCED:
        return ""
    return str(folder.read(f"train-{name_stage(arm, domain)}").get("lacking", ""))


def _try_job(folder: Folder, name: str) -> Document:
    """Run a reinforced job; one without verdicts is a result. Raise StageFailure."""
    command = build_training(folder, name, "", 0).command
    try:
        return train(folder, name, command)
    except StageFailure as error:
        untaught = _UNTAUGHT.search(str(error))
        if untaught is None:
            raise
        return {"lacking": untaught[0]}


def _write(
    what: Literal["tasks", "jobs", "gate"], plan: Reproduction, folder: Folder, domain: str
) -> Document:
    # The learner's packages take seconds to import, and a plan needs none of them.
    from ops.reproduce.areal_sea.jobs import write_gate, write_jobs, write_tasks

    return {"tasks": write_tasks, "jobs": write_jobs, "gate": write_gate}[what](
        plan, folder, domain
    )


def _load(plan: Reproduction, folder: Folder, domain: str) -> Document:
    from ops.reproduce.endpoint import load_adapter

    return {
        arm: load_adapter(
            plan, plan.name_policy(arm, domain), folder.adapter(name_stage(arm, domain))
        )
        for arm in TRAINED
        if not _find_lacking(folder, arm, domain)
    }


def _report(plan: Reproduction, folder: Folder) -> Document:
    from ops.reproduce.areal_sea.table import build_table

    return build_table(plan, folder)
