"""The table's options, its plan, and its stages in order."""

import argparse
from functools import partial
from typing import Final

from ops.reproduce.commands import Document, Folder, build_eval_command, write_model
from ops.reproduce.options import add_common_options, count_tasks, read_common_options
from ops.reproduce.sentinel.settings import (
    ENVIRONMENTS,
    SMALL,
    TEMPERATURE,
    WHOLE,
    Policy,
    Reproduction,
)
from ops.reproduce.stages import (
    Stage,
    Table,
    build_check,
    build_command,
    build_own,
    build_training,
    load,
)

_NAME: Final = "sentinel"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for running this published table again."""
    add_common_options(parser, sorted(ENVIRONMENTS), "retail")
    parser.set_defaults(table=TABLE)


def build_plan(options: argparse.Namespace) -> Reproduction:
    """Return the plan of the options. Raise WrongUsage."""
    defaults = ENVIRONMENTS[options.env]
    common = read_common_options(options, defaults)
    counts = SMALL if options.small else WHOLE.model_copy(update={"tasks": defaults.tasks})
    return Reproduction(**common, counts=counts, traffic=defaults.traffic)


def build_stages(plan: Reproduction, folder: Folder, tasks: int) -> list[Stage]:
    """Return all stages of the table; `tasks` is the number of evaluated tasks."""
    counts = plan.counts
    own = partial(build_own, _NAME, folder)
    trained: tuple[Policy, ...] = ("general", "targeted")
    names = [(policy, plan.name_policy(policy)) for policy in trained]
    return [
        build_check(_NAME, plan, folder),
        _evaluate(plan, folder, "base", tasks),
        own(
            "record", "the base serves generated traffic, which counts in the targeted budget",
            partial(_record, plan, folder), episodes=counts.recorded,
        ),
        build_command(
            folder, "diagnose", "close a round over what was recorded",
            ["kintsugi", "diagnose", "--home", str(folder.training), "--json"],
        ),
        own(
            "write-tasks", "directive, written tasks, and the specs of both jobs",
            partial(_write_tasks, plan, folder),
        ),
        build_training(folder, "general", "the general job, preset sentinel", counts.rollouts),
        build_training(
            folder, "targeted", "the targeted job, preset sentinel",
            counts.rollouts - counts.recorded,
        ),
        own(
            "load", "load both adapters at the endpoint, and prove that they answer",
            partial(load, plan, folder, names), repeated=True,
        ),
        _evaluate(plan, folder, "general", tasks),
        _evaluate(plan, folder, "targeted", tasks),
        own("report", "the table", partial(_report, plan, folder), repeated=True),
    ]  # fmt: skip


def _evaluate(plan: Reproduction, folder: Folder, policy: Policy, tasks: int) -> Stage:
    selection = ["--split", plan.split]
    if plan.traffic:
        selection = ["--mix", ",".join(f"{kind}={part:g}" for kind, part in plan.traffic.items())]
    if plan.counts.tasks is not None:
        selection += ["--tasks", str(plan.counts.tasks)]
    name, trials = plan.name_policy(policy), plan.counts.trials
    command = build_eval_command(plan, folder, name, selection, trials, TEMPERATURE)
    action = f"pass^1 to pass^{trials} of the {policy} policy"
    return build_command(folder, f"evaluate-{policy}", action, command, tasks * trials)


def _record(plan: Reproduction, folder: Folder) -> Document:
    # Import here: the learner's packages take seconds, and `--plan` needs none of them.
    from ops.reproduce.sentinel.training import record_traffic

    return {"rollouts": record_traffic(plan, folder.training)}


def _write_tasks(plan: Reproduction, folder: Folder) -> Document:
    from ops.reproduce.sentinel.training import plan_jobs

    jobs = plan_jobs(plan, folder.training)
    write_model(folder.spec("general"), jobs.general)
    write_model(folder.spec("targeted"), jobs.targeted)
    return {
        "excluded": jobs.excluded,
        "rejected": jobs.rejected,
        "pools": {pool.name: len(pool.tasks) for pool in jobs.targeted.pools},
    }


def _report(plan: Reproduction, folder: Folder) -> Document:
    from ops.reproduce.sentinel.table import build_table

    return build_table(plan, folder)


TABLE: Final = Table(
    _NAME,
    Reproduction,
    ENVIRONMENTS,
    build_plan,
    lambda plan: count_tasks(plan, **plan.select_evaluated()),
    build_stages,
)
