"""Run a published table again.

    python -m ops.reproduce sentinel --base-url URL --checkpoint DIR --out DIR [--plan]
    python -m ops.reproduce sentinel --base-url URL --checkpoint DIR --out DIR --env shop --small
    python -m ops.reproduce sentinel --out DIR --only STAGE

The base, the same model after general reinforcement learning, and after targeted one, at equal
rollouts. The endpoint is a vLLM with `--enable-lora` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, or
the embedded engine, and reads the folder of `--out`. Real tasks of retail are read from the folder
that KINTSUGI_BENCHMARKS names. `--plan` prints every stage's command and estimated cost and runs
none. A run that was stopped goes on at its stage. Exit codes: 0 done, 1 failed, 2 wrong usage, 3
done but for attempts without a verdict, 4 the endpoint is away.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from envs.endpoint import EndpointUnavailable
from envs.environment import UnknownTask
from envs.registry import open_environment
from events.errors import KintsugiError
from ops.learning.results import write_document
from ops.reproduce.commands import Document, EndpointAway, Folder
from ops.reproduce.settings import ENVIRONMENTS, SMALL, WHOLE, Reproduction
from ops.reproduce.stages import Stage, build_stages, describe

DONE, FAILED, USAGE, PARTLY, UNAVAILABLE = 0, 1, 2, 3, 4

BENCHMARKS: Final = "KINTSUGI_BENCHMARKS"
_TOKENS_PER_SECOND: Final = 2500.0


class WrongUsage(KintsugiError):
    """Options that do not fit together, or a folder of another run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (default: the process's own); returns its exit code."""
    from daemon.serving.replica import ReplicaDown

    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except WrongUsage as error:
        return _complain(error, USAGE)
    except (EndpointAway, EndpointUnavailable, ReplicaDown) as error:
        return _complain(error, UNAVAILABLE)
    except (KintsugiError, OSError) as error:
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    print(f"ops.reproduce: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _run(options: argparse.Namespace) -> int:
    folder = Folder(options.out.absolute())
    plan = _read_plan(folder) if options.checkpoint is None else build_plan(options)
    tasks = count_evaluated(plan)
    _claim(folder, plan)
    if options.plan:
        tokens = ENVIRONMENTS[plan.env].tokens
        print(describe(plan, folder, tasks, tokens, options.tokens_per_second))
        return DONE
    stages = build_stages(plan, folder, tasks)
    if options.only is not None:
        stages = [_find_stage(stages, options.only)]
    documents = [document for stage in stages if (document := _run_stage(stage, folder))]
    if unjudged := sum(
        sum(document.get("unjudged_attempts", {}).values()) for document in documents
    ):
        print(f"{unjudged} attempts have no verdict, and count in no figure", file=sys.stderr)
        return PARTLY
    return DONE


def _find_stage(stages: Sequence[Stage], name: str) -> Stage:
    """Return the stage of this name. Raises WrongUsage."""
    for stage in stages:
        if stage.name == name:
            return stage
    raise WrongUsage(f"{name!r} is no stage; there are {', '.join(s.name for s in stages)}")


def _run_stage(stage: Stage, folder: Folder) -> Document | None:
    """Return what a stage left now; None where it was done before."""
    if folder.result(stage.name).exists() and not stage.repeated:
        print(f"{stage.name}: done before", file=sys.stderr)
        return None
    print(f"{stage.name}: {stage.action}", file=sys.stderr, flush=True)
    document = stage.run()
    folder.write(stage.name, document)
    if "text" in document:
        print(document["text"])
    return document


def build_plan(options: argparse.Namespace) -> Reproduction:
    """Return the reproduction that the options ask for. Raises WrongUsage."""
    checkpoint = options.checkpoint.absolute()
    if not (checkpoint / "config.json").is_file():
        raise WrongUsage(f"{checkpoint} holds no checkpoint (no config.json); correct --checkpoint")
    if options.base_url is None:
        raise WrongUsage("--base-url is missing; name the endpoint, up to /v1")
    defaults = ENVIRONMENTS[options.env]
    benchmarks = os.environ.get(BENCHMARKS)
    if defaults.split != "generated" and not benchmarks:
        raise WrongUsage(
            f"{options.env} is evaluated on real tasks, and {BENCHMARKS} names no folder of them; "
            "set it to one that has tau2, or give --env shop"
        )
    return Reproduction(
        base_url=options.base_url.rstrip("/"),
        model=options.model or checkpoint.name,
        checkpoint=checkpoint,
        env=options.env,
        split=defaults.split,
        benchmarks=Path(benchmarks).absolute() if benchmarks else None,
        counts=SMALL if options.small else WHOLE,
        traffic=defaults.traffic,
        max_tokens=options.max_tokens or defaults.max_tokens,
        user_model=options.user_model,
        user_base_url=options.user_base_url,
        source=options.source,
        device=options.device,
        dtype=options.dtype,
        seed=options.seed,
        concurrency=options.concurrency,
    )


def count_evaluated(plan: Reproduction) -> int:
    """Return the number of evaluated tasks. Raises WrongUsage where the real ones are missing."""
    from ops.reproduce.training import select_evaluated

    try:
        environment = open_environment(plan.env, benchmarks=plan.benchmarks)
        return sum(1 for _ in select_evaluated(plan).tasks(environment, plan.seed))
    except UnknownTask as error:
        raise WrongUsage(f"{error}; {BENCHMARKS} names {plan.benchmarks}") from error


def _read_plan(folder: Folder) -> Reproduction:
    """Return the reproduction that a folder holds. Raises WrongUsage."""
    try:
        return Reproduction.model_validate_json(folder.settings.read_bytes())
    except FileNotFoundError:
        raise WrongUsage(
            f"{folder.path} holds no reproduction yet; give --base-url and --checkpoint"
        ) from None


def _claim(folder: Folder, plan: Reproduction) -> None:
    """Write what the folder is for, or check that it is for this. Raises WrongUsage."""
    if folder.settings.exists():
        if _read_plan(folder) != plan:
            raise WrongUsage(
                f"{folder.settings} is of other options; give the same, or another --out"
            )
        return
    # Without settings of its own: what is configured elsewhere on this machine is not used.
    benchmarks = (
        "" if plan.benchmarks is None else f"benchmarks = {json.dumps(str(plan.benchmarks))}\n"
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.configuration.write_text(benchmarks, encoding="utf-8")
    write_document(folder.settings, plan)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.reproduce",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tables = parser.add_subparsers(required=True)
    sentinel = tables.add_parser("sentinel", help="base, general and targeted at equal rollouts")
    add = sentinel.add_argument
    add("--out", type=Path, required=True, help="folder of this run; the endpoint reads it")
    add("--base-url", help="of the endpoint, up to /v1")
    add("--checkpoint", type=Path, help="folder of the model that the endpoint serves")
    add("--model", help="its name there; default: the checkpoint folder's")
    add("--env", choices=sorted(ENVIRONMENTS), default="retail")
    add("--small", action="store_true", help="counts that show that it runs, and nothing else")
    add("--plan", action="store_true", help="print commands and estimated costs, run nothing")
    add("--only", metavar="STAGE", help="run this stage alone")
    add("--user-model", help="plays the user of real tasks; default: their scripts")
    add("--user-base-url", help="default: --base-url")
    add("--source", choices=("endpoint", "in_process", "vllm"), default="endpoint",
        help="where a job's rollouts come from")  # fmt: skip
    add("--device", default="cpu", help="of checkpoint and jobs: cpu, cuda")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--max-tokens", type=int, help="of one answer; default: by the environment")
    add("--seed", type=int, default=0)
    add("--concurrency", type=int, default=32, help="episodes at once")
    add("--tokens-per-second", type=float, default=_TOKENS_PER_SECOND,
        help="of the endpoint, for estimates")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
