"""The stages of the table, in order."""

from functools import partial
from typing import Final

from ops.reproduce.commands import Document, Folder, run_command, write_model
from ops.reproduce.sentinel.commands import Policy, build_evaluation, name_policy
from ops.reproduce.sentinel.settings import Reproduction
from ops.reproduce.stages import Stage, build_check, build_own_command, build_training, load

NAME: Final = "sentinel"


def build_stages(plan: Reproduction, folder: Folder, tasks: int) -> list[Stage]:
    """Return all stages; `tasks` is the number of evaluated ones."""
    counts = plan.counts
    own = partial(build_own_command, NAME, folder)
    trained: tuple[Policy, ...] = ("general", "targeted")
    diagnose = ["kintsugi", "diagnose", "--home", str(folder.training), "--json"]
    names = [(policy, name_policy(plan, policy)) for policy in trained]
    return [
        build_check(NAME, plan, folder),
        _evaluate(plan, folder, "base", tasks),
        Stage(
            "record", "the base serves generated traffic, which counts in the targeted budget",
            own("record"), partial(_record, plan, folder), episodes=counts.recorded,
        ),
        Stage(
            "diagnose", "close a round over what was recorded",
            tuple(diagnose), partial(run_command, folder, diagnose),
        ),
        Stage(
            "write-tasks", "directive, written tasks, and the specs of both jobs",
            own("write-tasks"), partial(_write_tasks, plan, folder),
        ),
        build_training(folder, "general", "the general job, preset sentinel", counts.rollouts),
        build_training(
            folder, "targeted", "the targeted job, preset sentinel",
            counts.rollouts - counts.recorded,
        ),
        Stage(
            "load", "load both adapters at the endpoint, and prove that they answer",
            own("load"), partial(load, plan, folder, names), repeated=True,
        ),
        _evaluate(plan, folder, "general", tasks),
        _evaluate(plan, folder, "targeted", tasks),
        Stage("report", "the table", own("report"), partial(_report, plan, folder),
              repeated=True),
    ]  # fmt: skip


def _evaluate(plan: Reproduction, folder: Folder, policy: Policy, tasks: int) -> Stage:
    command = build_evaluation(plan, folder, policy)
    return Stage(
        f"evaluate-{policy}", f"pass^1 to pass^{plan.counts.trials} of the {policy} policy",
        tuple(command), partial(run_command, folder, command), tasks * plan.counts.trials,
    )  # fmt: skip


def _record(plan: Reproduction, folder: Folder) -> Document:
    # The learner's packages take seconds to import, and a plan needs none of them.
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
