"""The table's options, its plan, and its stages in order; every domain has all of them."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Literal

from ops.reproduce.areal_sea.commands import USER, build_evaluation, build_gate, name_stage
from ops.reproduce.areal_sea.settings import (
    ARMS,
    ENVIRONMENTS,
    PRESET,
    REINFORCED,
    SMALL,
    TAU2,
    TRAINED,
    WHOLE,
    Arm,
    Reproduction,
)
from ops.reproduce.commands import Document, Folder, StageFailure, run_command
from ops.reproduce.options import (
    WrongUsage,
    add_common_options,
    count_tasks,
    read_address,
    read_common_options,
)
from ops.reproduce.stages import (
    Stage,
    Table,
    build_check,
    build_command,
    build_own,
    build_training,
    train,
)

_NAME: Final = "areal-sea"
_UNTAUGHT: Final = re.compile(r"none of \d+ rollouts taught anything.*")
"""Reason with which a job without any informative group ends (daemon/solver/job.py)."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for running this published table again."""
    add_common_options(parser, sorted(ENVIRONMENTS), TAU2)
    add = parser.add_argument
    add("--proposer-model", help="writes plans and tasks; default: rules and templates")
    add("--proposer-base-url", type=read_address, help="default: --base-url")
    parser.set_defaults(table=TABLE)


def build_plan(options: argparse.Namespace) -> Reproduction:
    """Return the plan of the options. Raise WrongUsage."""
    defaults = ENVIRONMENTS[options.env]
    common = read_common_options(options, defaults)
    if options.source == "in_process":
        raise WrongUsage(
            "rollouts in a job's own process wait for no endpoint, and one arm's user is the base "
            "at the endpoint; give --source endpoint or vllm"
        )
    if options.proposer_base_url is not None and options.proposer_model is None:
        raise WrongUsage("--proposer-base-url names no model; give --proposer-model too")
    return Reproduction(
        **common,
        counts=SMALL if options.small else WHOLE.model_copy(update={"tasks": defaults.tasks}),
        proposer_model=options.proposer_model,
        proposer_base_url=options.proposer_base_url,
    )


def count_domain(plan: Reproduction, domain: str) -> int:
    """Return the number of evaluated tasks of a domain. Raise WrongUsage."""
    own = plan.select_domain(domain)
    return count_tasks(own, split=plan.split, first=plan.counts.tasks)


def build_stages(plan: Reproduction, folder: Folder, tasks: int) -> list[Stage]:
    """Return all stages; `tasks` is the number of evaluated ones of all domains."""
    report = partial(_report, plan, folder)
    return [
        build_check(_NAME, plan, folder),
        *(stage for domain in plan.domains for stage in _build_domain(plan, folder, domain)),
        build_own(_NAME, folder, "report", "the table", report, repeated=True),
    ]


def _build_domain(plan: Reproduction, folder: Folder, domain: str) -> Iterator[Stage]:
    counts, tasks = plan.counts, count_domain(plan, domain)
    own = partial(build_own, _NAME, folder)
    writer = plan.proposer_model or "rules and templates"
    yield _evaluate(plan, folder, "base", domain, tasks)
    yield own(
        f"write-tasks-{domain}",
        f"{counts.plans} plans and {counts.written:,} tasks of {domain} by {writer}: synthesis, "
        "verification, rollout by the oracle, attribution, reflection",
        partial(_write, "tasks", plan, folder, domain),
    )
    yield own(
        f"write-specs-{domain}", "the specs of the jobs of agent and user",
        partial(_write, "jobs", plan, folder, domain),
    )  # fmt: skip
    user = name_stage(USER, domain)
    action = f"supervised training of the user on at most {counts.dialogues:,} dialogues"
    yield build_training(folder, user, action, rollouts=0)
    yield own(
        f"write-gate-{domain}", "the plan of the user's gate",
        partial(_write, "gate", plan, folder, domain),
    )  # fmt: skip
    yield build_command(
        folder, f"gate-{domain}", f"the user's gate of {counts.gate} dialogues with the oracle",
        build_gate(folder, domain), counts.gate,
    )  # fmt: skip
    yield build_training(folder, name_stage("sft", domain), ARMS["sft"], rollouts=0)
    for arm in REINFORCED:
        yield _reinforce(plan, folder, arm, domain)
    yield own(
        f"load-{domain}", "load the adapters at the endpoint, and prove that they answer",
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
    """Run a reinforced job. A job that taught nothing is a result too. Raise StageFailure."""
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
    # Import here: the learner's packages take seconds, and `--plan` needs none of them.
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


TABLE: Final = Table(
    _NAME,
    Reproduction,
    ENVIRONMENTS,
    build_plan,
    lambda plan: sum(count_domain(plan, domain) for domain in plan.domains),
    build_stages,
)
