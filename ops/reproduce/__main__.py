"""Run a published table again.

    python -m ops.reproduce TABLE --base-url URL --checkpoint DIR --out DIR [--plan]
    python -m ops.reproduce TABLE --base-url URL --checkpoint DIR --out DIR --env shop --small
    python -m ops.reproduce TABLE --out DIR --only STAGE

    sentinel     the base, the same model after general reinforcement learning, and after targeted
                 one, at equal rollouts
    reflection   repairs of failed calls by the base, and by the same model after training on
                 lessons, supervised and with reinforcement learning on top
    areal-sea    the base, the same model after supervised training on synthesized tasks, and after
                 reinforcement learning with an untrained and with a trained user, in three domains

The endpoint is a vLLM with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, or the
embedded engine, and reads the folder of `--out`. Real tasks are read from the folder that
KINTSUGI_BENCHMARKS names. `--plan` prints every stage's command and estimated cost, and runs and
writes nothing. A run that was stopped goes on at its stage, also where its endpoint came back at
another address: the same command with another --base-url. Exit codes: 0 done, 1 failed, 2 wrong
usage, 3 done but for what is named, 4 the endpoint is away.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from envs.endpoint import EndpointUnavailable
from events.errors import KintsugiError
from events.registry import first_problem
from ops.command_line import build_parser
from ops.reproduce.areal_sea import stages as areal_sea
from ops.reproduce.commands import Document, EndpointAway, Folder, write_model
from ops.reproduce.options import WrongUsage, check_unused, set_defaults
from ops.reproduce.reflection import stages as reflection
from ops.reproduce.sentinel import stages as sentinel
from ops.reproduce.settings import Served
from ops.reproduce.stages import Stage, Table, describe

DONE, FAILED, USAGE, PARTLY, UNAVAILABLE = 0, 1, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own) and return its exit code."""
    from daemon.serving.replica import ReplicaDown

    options = _parser().parse_args(arguments)
    try:
        return _run(options, sys.argv[1:] if arguments is None else arguments)
    except WrongUsage as error:
        return _complain(error, USAGE)
    except (EndpointAway, EndpointUnavailable, ReplicaDown) as error:
        return _complain(error, UNAVAILABLE)
    except (KintsugiError, OSError) as error:
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    print(f"ops.reproduce: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    folder, table = Folder(options.out.absolute()), options.table
    stored = _read_plan(folder, table) if folder.settings.exists() else None
    plan = _choose_plan(options, folder, stored)
    tasks = table.count_evaluated(plan)
    stages = table.build_stages(plan, folder, tasks)
    if options.only is not None:
        stages = [_find_stage(stages, options.only)]
    if options.plan:
        if plan != stored:
            stages = [replace(stages[0], command=_build_first(arguments, stages[0])), *stages[1:]]
        tokens = table.environments[plan.env].tokens
        print(describe(plan, folder, stages, tasks, tokens, options.tokens_per_second))
        return DONE
    if plan != stored:
        _claim(folder, plan)
    if plan.before:
        # The learner's packages take seconds to import.
        from ops.reproduce.jobs import move_jobs

        move_jobs(plan, folder)
    documents = [document for stage in stages if (document := _run_stage(stage, plan, folder))]
    remarks = [remark for document in documents for remark in document.get("remarks", ())]
    if unjudged := sum(
        sum(document.get("unjudged_attempts", {}).values()) for document in documents
    ):
        remarks.append(f"{unjudged} attempts have no verdict, and count in no figure")
    for remark in remarks:
        print(remark, file=sys.stderr)
    return PARTLY if remarks else DONE


def _find_stage(stages: Sequence[Stage], name: str) -> Stage:
    for stage in stages:
        if stage.name == name:
            return stage
    raise WrongUsage(f"{name!r} is no stage; there are {', '.join(s.name for s in stages)}")


def _run_stage(stage: Stage, plan: Served, folder: Folder) -> Document | None:
    """Run a stage and return its result; None if it was done before. Raise StageFailure."""
    if folder.result(stage.name).exists() and not stage.repeated:
        folder.read(stage.name)
        print(f"{stage.name}: done before", file=sys.stderr)
        return None
    print(f"{stage.name}: {stage.action}", file=sys.stderr, flush=True)
    document = stage.run()
    folder.write(stage.name, document | {"addresses": plan.addresses.model_dump(mode="json")})
    if "text" in document:
        print(document["text"])
    return document


def _read_plan(folder: Folder, table: Table[Any]) -> Served:
    try:
        plan: Served = table.plan.model_validate_json(folder.settings.read_bytes())
    except ValidationError as error:
        raise WrongUsage(
            f"{folder.settings} is no plan of {table.name} ({first_problem(error)}); give another "
            "--out"
        ) from None
    return plan


def _choose_plan(options: argparse.Namespace, folder: Folder, stored: Served | None) -> Served:
    """Return the stored plan with the options' addresses, or a new plan. Raise WrongUsage."""
    if options.checkpoint is None:
        check_unused(options)
        if stored is None:
            raise WrongUsage(
                f"{folder.path} holds no reproduction yet; give --base-url and --checkpoint"
            )
        return stored
    set_defaults(options)
    plan: Served = options.table.build_plan(options)
    if stored is None:
        return plan
    if changed := stored.find_difference(plan):
        raise WrongUsage(
            f"{folder.settings} is of other options ({', '.join(changed)}); give the same, or "
            "another --out"
        )
    return stored.move(plan.addresses)


def _build_first(arguments: Sequence[str], stage: Stage) -> tuple[str, ...]:
    own = [argument for argument in arguments if argument != "--plan"]
    only = [] if "--only" in own else ["--only", stage.name]
    return ("python", "-m", "ops.reproduce", *own, *only)


def _claim(folder: Folder, plan: Served) -> None:
    # Write a nearly empty file, so that no other configuration of this machine is used.
    benchmarks = (
        "" if plan.benchmarks is None else f"benchmarks = {json.dumps(str(plan.benchmarks))}\n"
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.configuration.write_text(benchmarks, encoding="utf-8")
    write_model(folder.settings, plan)


def _parser() -> argparse.ArgumentParser:
    parser = build_parser(__doc__)
    tables = parser.add_subparsers(required=True)
    add = tables.add_parser
    sentinel.add_options(add("sentinel", help="base, general and targeted at equal rollouts"))
    reflection.add_options(add("reflection", help="repairs before and after training on lessons"))
    areal_sea.add_options(add("areal-sea", help="synthesized tasks, and users, trained or not"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
