"""Options that every table has.

Options of a run have no default in the parser, so the program knows which ones were given. Without
`--checkpoint`, the folder's stored options are used and given ones are refused (check_unused).
"""

import argparse
import os
import re
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from envs.environment import UnknownTask
from envs.task import GENERATED
from events.errors import KintsugiError
from ops.reproduce.homes import open_plan_environment
from ops.reproduce.settings import EnvironmentDefaults, Served

N = TypeVar("N", int, float)

BENCHMARKS: Final = "KINTSUGI_BENCHMARKS"
_TOKENS_PER_SECOND: Final = 2500.0
_DEVICE: Final = re.compile(r"cpu|cuda(:\d+)?")
_DEFAULTS: Final = "defaults"
_OF_EVERY_COMMAND: Final = frozenset(
    {"out", "checkpoint", "plan", "only", "tokens_per_second", "table", _DEFAULTS}
)


class WrongUsage(KintsugiError):
    """Options contradict each other, or the folder is of another run."""


def add_common_options(
    parser: argparse.ArgumentParser, environments: list[str], environment: str
) -> None:
    """Add the options of the endpoint, the environment and the run."""
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of this run; the endpoint reads it")
    add("--base-url", type=read_address, help="of the endpoint, up to /v1")
    add("--checkpoint", type=Path, help="folder of the model that the endpoint serves")
    add("--model", help="its name there; default: the checkpoint folder's")
    add("--env", choices=environments, help=f"default: {environment}")
    add("--small", action="store_true", help="counts that show that it runs, and nothing else")
    add("--plan", action="store_true", help="print commands and estimated costs, run nothing")
    add("--only", metavar="STAGE", help="run this stage alone")
    add("--user-model", help="plays the user of real tasks; default: their scripts")
    add("--user-base-url", type=read_address, help="default: --base-url")
    add("--source", choices=("endpoint", "in_process", "vllm"),
        help="where a job's rollouts come from; default: endpoint")  # fmt: skip
    add("--device", type=_read_device, help="of checkpoint and jobs: cpu (default), cuda, cuda:1")
    add("--dtype", choices=("float32", "bfloat16"), help="default: float32")
    add("--max-tokens", type=_read_count, help="of one answer; default: by the environment")
    add("--seed", type=int, help="default: 0")
    add("--concurrency", type=_read_count, help="episodes at once; default: 32")
    add("--tokens-per-second", type=_read_rate, default=_TOKENS_PER_SECOND,
        help="of the endpoint, for estimates")  # fmt: skip
    parser.set_defaults(
        **{
            _DEFAULTS: {
                "env": environment,
                "source": "endpoint",
                "device": "cpu",
                "dtype": "float32",
                "seed": 0,
                "concurrency": 32,
            }
        }
    )


def read_address(text: str) -> str:
    """Return an endpoint's address without a slash at its end. Raise ArgumentTypeError."""
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no address of an endpoint; give one such as http://127.0.0.1:8000/v1"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise argparse.ArgumentTypeError(
            f"{shown!r} has more than scheme, host and path; leave out the rest, which is stored"
        )
    return text.rstrip("/")


def _read_device(text: str) -> str:
    if _DEVICE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no device; give cpu, cuda or cuda:N")
    return text


def _read_positive(text: str, kind: type[N], noun: str) -> N:
    try:
        number = kind(text)
    except ValueError:
        number = kind(0)
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no {noun} above 0")
    return number


_read_count: Final = partial(_read_positive, kind=int, noun="whole number")
_read_rate: Final = partial(_read_positive, kind=float, noun="number")


def check_unused(options: argparse.Namespace) -> None:
    """Raise WrongUsage for options of a run without `--checkpoint`: they would change nothing."""
    unused = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(options).items()
        if name not in _OF_EVERY_COMMAND and value is not None and value is not False
    ]
    if unused:
        raise WrongUsage(
            f"without --checkpoint, the options that {options.out} was begun with hold, and "
            f"{', '.join(unused)} would change nothing; leave them out, or give --checkpoint and "
            "all options of the run"
        )


def set_defaults(options: argparse.Namespace) -> None:
    """Set the defaults of all options that were not given."""
    for name, value in getattr(options, _DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def count_tasks(plan: Served, **selection: Any) -> int:
    """Return the number of selected tasks. Raise WrongUsage if the real tasks are missing."""
    from daemon.evaluation.run import Selection

    try:
        return sum(1 for _ in Selection(**selection).tasks(open_plan_environment(plan), plan.seed))
    except UnknownTask as error:
        raise WrongUsage(f"{error}; {BENCHMARKS} names {plan.benchmarks}") from error


def read_common_options(
    options: argparse.Namespace, defaults: EnvironmentDefaults
) -> dict[str, Any]:
    """Return the fields of `Served`, with the environment's defaults. Raise WrongUsage."""
    checkpoint = options.checkpoint.absolute()
    if not (checkpoint / "config.json").is_file():
        raise WrongUsage(f"{checkpoint} holds no checkpoint (no config.json); correct --checkpoint")
    if options.base_url is None:
        raise WrongUsage("--base-url is missing; name the endpoint, up to /v1")
    benchmarks = os.environ.get(BENCHMARKS)
    if defaults.split != GENERATED and not benchmarks:
        raise WrongUsage(
            f"{options.env} is evaluated on real tasks, and {BENCHMARKS} names no folder of them; "
            "set it to one that has tau2, or give --env shop"
        )
    if options.user_base_url is not None and options.user_model is None:
        raise WrongUsage("--user-base-url names no model; give --user-model too")
    return {
        "format": 2,
        "base_url": options.base_url,
        "model": options.model or checkpoint.name,
        "checkpoint": checkpoint,
        "env": options.env,
        "split": defaults.split,
        "benchmarks": Path(benchmarks).absolute() if benchmarks else None,
        "max_tokens": options.max_tokens or defaults.max_tokens,
        "user_model": options.user_model,
        "user_base_url": options.user_base_url,
        "source": options.source,
        "device": options.device,
        "dtype": options.dtype,
        "seed": options.seed,
        "concurrency": options.concurrency,
    }
