"""The table's options, its plan, and its stages in order."""

import argparse
from functools import partial
from pathlib import Path
from typing import Final

from envs.bfcl.cases import find_splits
from envs.bfcl.classes import NoBfclClasses, require
from ops.reproduce.commands import Document, Folder
from ops.reproduce.options import (
    BENCHMARKS,
    WrongUsage,
    add_common_options,
    count_tasks,
    read_common_options,
)
from ops.reproduce.reflection.commands import (
    build_bfcl,
    build_evaluation,
    build_items,
    build_lessons,
)
from ops.reproduce.reflection.settings import (
    CASE_TOKENS,
    ENVIRONMENTS,
    PRESETS,
    REPAIR_TOKENS,
    SMALL,
    SUPERVISED,
    WHOLE,
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

_NAME: Final = "reflection"

_CASES: Final = 800
_ITEMS: Final = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for running this published table again."""
    add_common_options(parser, sorted(ENVIRONMENTS), "retail")
    add = parser.add_argument
    add("--presets", metavar="NAME,...",
        help=f"what follows the supervised training, of {', '.join(PRESETS)}; default: "
        f"{PRESETS[0]}")  # fmt: skip
    add("--items", type=Path, metavar="FILE", help="of Tool-Reflection-Bench")
    add("--extra", metavar="JSON", help="further fields of the items' requests")
    add("--without-bfcl", action="store_true",
        help=f"leave out BFCL, also where {BENCHMARKS} has it")  # fmt: skip
    parser.set_defaults(table=TABLE)


def build_plan(options: argparse.Namespace) -> Reproduction:
    """Return the plan of the options. Raise WrongUsage."""
    defaults = ENVIRONMENTS[options.env]
    common = read_common_options(options, defaults)
    counts = SMALL if options.small else WHOLE.model_copy(update={"tasks": defaults.tasks})
    if options.items is not None and not options.items.is_file():
        raise WrongUsage(f"{options.items} is no file; correct --items")
    return Reproduction(
        **common,
        counts=counts,
        presets=_read_presets(PRESETS[0] if options.presets is None else options.presets),
        file=None if options.items is None else options.items.absolute(),
        extra=options.extra or "",
        bfcl=not options.without_bfcl and _has_bfcl(common["benchmarks"]),
    )


def _read_presets(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in PRESETS:
            raise WrongUsage(f"{name!r} is none of {', '.join(PRESETS)}; correct --presets")
    return names


def _has_bfcl(benchmarks: Path | None) -> bool:
    if benchmarks is None or not find_splits(benchmarks):
        return False
    try:
        require()
    except NoBfclClasses as error:
        raise WrongUsage(f"{error}; or give --without-bfcl") from error
    return True


def build_stages(plan: Reproduction, folder: Folder, tasks: int) -> list[Stage]:
    """Return all stages; `tasks` is the number of evaluated ones."""
    own = partial(build_own, _NAME, folder)
    names = [(policy, plan.name_policy(policy)) for policy in plan.arms]
    return [
        build_check(_NAME, plan, folder),
        *_evaluate(plan, folder, "base", tasks),
        build_command(
            folder, "lessons", f"lessons of generated tasks of {plan.env}, those for tests kept "
            "apart", build_lessons(plan, folder),
        ),
        own(
            "write-specs", "which lessons are shown and which practised, and the jobs' specs",
            partial(_write_jobs, plan, folder),
        ),
        *(_train(plan, folder, arm) for arm in plan.arms),
        own(
            "load", "load the adapters at the endpoint, and prove that they answer",
            partial(load, plan, folder, names), repeated=True,
        ),
        *(stage for arm in plan.arms for stage in _evaluate(plan, folder, arm, tasks)),
        own("report", "the table", partial(_report, plan, folder), repeated=True),
    ]  # fmt: skip


def _evaluate(plan: Reproduction, folder: Folder, policy: str, tasks: int) -> list[Stage]:
    counts = plan.counts
    stages = [
        build_command(
            folder, f"evaluate-{policy}", f"repairs and clean tasks of the policy {policy}",
            build_evaluation(plan, folder, policy), tasks * counts.trials,
        )
    ]  # fmt: skip
    if plan.file is not None:
        episodes = (counts.items or _ITEMS) * counts.samples
        stages.append(
            build_command(
                folder, f"items-{policy}", f"Tool-Reflection-Bench, {policy}",
                build_items(plan, folder, policy), episodes, REPAIR_TOKENS,
            )
        )  # fmt: skip
    if plan.bfcl:
        episodes = _CASES if counts.cases is None else 4 * counts.cases
        stages.append(
            build_command(
                folder, f"bfcl-{policy}", f"BFCL's multi-turn categories, {policy}",
                build_bfcl(plan, folder, policy), episodes, CASE_TOKENS,
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
    # Import here: the learner's packages take seconds, and `--plan` needs none of them.
    from ops.reproduce.reflection.jobs import write_jobs

    return write_jobs(plan, folder)


def _report(plan: Reproduction, folder: Folder) -> Document:
    from ops.reproduce.reflection.table import build_table

    return build_table(plan, folder)


TABLE: Final = Table(
    _NAME,
    Reproduction,
    ENVIRONMENTS,
    build_plan,
    lambda plan: count_tasks(plan, split=plan.split, first=plan.counts.tasks),
    build_stages,
)
