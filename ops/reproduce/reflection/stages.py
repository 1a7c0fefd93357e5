"""The stages of the table, in order."""

from functools import partial
from typing import Final

from ops.reproduce.commands import Document, Folder, run_command
from ops.reproduce.reflection.commands import (
    build_bfcl,
    build_evaluation,
    build_items,
    build_lessons,
)
from ops.reproduce.reflection.settings import (
    CASE_TOKENS,
    REPAIR_TOKENS,
    SUPERVISED,
    Reproduction,
)
from ops.reproduce.stages import Stage, build_check, build_own_command, build_training, load

NAME: Final = "reflection"

_CASES: Final = 800
_ITEMS: Final = 1000


def build_stages(plan: Reproduction, folder: Folder, tasks: int) -> list[Stage]:
    """Return all stages; `tasks` is the number of evaluated ones."""
    own = partial(build_own_command, NAME, folder)
    names = [(policy, plan.name_policy(policy)) for policy in plan.arms]
    lessons = build_lessons(plan, folder)
    return [
        build_check(NAME, plan, folder),
        *_evaluate(plan, folder, "base", tasks),
        Stage(
            "lessons", f"lessons of generated tasks of {plan.env}, those for tests kept apart",
            tuple(lessons), partial(run_command, folder, lessons),
        ),
        Stage(
            "write-specs", "which lessons are shown and which practised, and the jobs' specs",
            own("write-specs"), partial(_write_jobs, plan, folder),
        ),
        *(_train(plan, folder, arm) for arm in plan.arms),
        Stage(
            "load", "load the adapters at the endpoint, and prove that they answer",
            own("load"), partial(load, plan, folder, names), repeated=True,
        ),
        *(stage for arm in plan.arms for stage in _evaluate(plan, folder, arm, tasks)),
        Stage("report", "the table", own("report"), partial(_report, plan, folder),
              repeated=True),
    ]  # fmt: skip


def _evaluate(plan: Reproduction, folder: Folder, policy: str, tasks: int) -> list[Stage]:
    counts = plan.counts
    command = build_evaluation(plan, folder, policy)
    stages = [
        Stage(
            f"evaluate-{policy}", f"repairs and clean tasks of the policy {policy}",
            tuple(command), partial(run_command, folder, command), tasks * counts.trials,
        )
    ]  # fmt: skip
    if plan.file is not None:
        command = build_items(plan, folder, policy)
        stages.append(
            Stage(
                f"items-{policy}", f"Tool-Reflection-Bench, {policy}", tuple(command),
                partial(run_command, folder, command),
                (counts.items or _ITEMS) * counts.samples, REPAIR_TOKENS,
            )
        )  # fmt: skip
    if plan.bfcl:
        command = build_bfcl(plan, folder, policy)
        episodes = _CASES if counts.cases is None else 4 * counts.cases
        stages.append(
            Stage(
                f"bfcl-{policy}", f"BFCL's multi-turn categories, {policy}", tuple(command),
                partial(run_command, folder, command), episodes, CASE_TOKENS,
            )
        )  # fmt: skip
    return stages


def _train(plan: Reproduction, folder: Folder, arm: str) -> Stage:
    if arm == SUPERVISED:
        action = f"supervised training on at most {plan.counts.shown:,} lessons"
        return build_training(folder, arm, action, rollouts=0)
    action = f"reinforcement learning on the others, preset {arm}, from the adapter {SUPERVISED}"
    return build_training(folder, arm, action, plan.counts.rollouts, REPAIR_TOKENS)


def _write_jobs(plan: Reproduction, folder: Folder) -> Document:
    # The learner's packages take seconds to import, and a plan needs none of them.
    from ops.reproduce.reflection.jobs import write_jobs

    return write_jobs(plan, folder)


def _report(plan: Reproduction, folder: Folder) -> Document:
    from ops.reproduce.reflection.table import build_table

    return build_table(plan, folder)
