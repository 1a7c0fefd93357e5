"""Options that every table has, and what they say."""

import argparse
import os
from pathlib import Path
from typing import Any, Final

from events.errors import KintsugiError

BENCHMARKS: Final = "KINTSUGI_BENCHMARKS"
_TOKENS_PER_SECOND: Final = 2500.0


class WrongUsage(KintsugiError):
    """Options that do not fit together, or a folder of another run."""


def add_common_options(
    parser: argparse.ArgumentParser, environments: list[str], environment: str
) -> None:
    """Add the options of the endpoint, the environment and the run."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of this run; the endpoint reads it")
    add("--base-url", help="of the endpoint, up to /v1")
    add("--checkpoint", type=Path, help="folder of the model that the endpoint serves")
    add("--model", help="its name there; default: the checkpoint folder's")
    add("--env", choices=environments, default=environment)
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


def read_common_options(
    options: argparse.Namespace, split: str, generated: bool, max_tokens: int
) -> dict[str, Any]:
    """Return the fields of `Served`; `split`, whether it is generated, and `max_tokens` are the
    environment's. Raises WrongUsage."""
    checkpoint = options.checkpoint.absolute()
    if not (checkpoint / "config.json").is_file():
        raise WrongUsage(f"{checkpoint} holds no checkpoint (no config.json); correct --checkpoint")
    if options.base_url is None:
        raise WrongUsage("--base-url is missing; name the endpoint, up to /v1")
    benchmarks = os.environ.get(BENCHMARKS)
    if not generated and not benchmarks:
        raise WrongUsage(
            f"{options.env} is evaluated on real tasks, and {BENCHMARKS} names no folder of them; "
            "set it to one that has tau2, or give --env shop"
        )
    return {
        "base_url": options.base_url.rstrip("/"),
        "model": options.model or checkpoint.name,
        "checkpoint": checkpoint,
        "env": options.env,
        "split": split,
        "benchmarks": Path(benchmarks).absolute() if benchmarks else None,
        "max_tokens": options.max_tokens or max_tokens,
        "user_model": options.user_model,
        "user_base_url": options.user_base_url,
        "source": options.source,
        "device": options.device,
        "dtype": options.dtype,
        "seed": options.seed,
        "concurrency": options.concurrency,
    }
