"""The ranges of the numbers in a job's spec, and the maximum sizes of its texts and lists. The
models of the spec (events/jobs.py) take every finite number above a lower bound, so that stored
specs stay readable. A job with a number outside these ranges is refused. Inside them, nothing
overflows in single precision, torch or memory. A test checks that every number has a range."""

from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

from events import algorithm, jobs

Range = tuple[float, float]
"""Lowest and highest value; the model may exclude the lowest one."""

_COUNT: Final = (0, 2**63 - 1)
_SEED: Final = (-(2**63), 2**63 - 1)
_SHARE: Final = (0, 1)
_TOKENS: Final = (1, 2**24)
"""Tokens of one conversation or of a part of it: more than any model's context."""
_BATCH_TOKENS: Final = (1, 2**31 - 1)
_ROLLOUTS: Final = (1, 10**9)
_THRESHOLD: Final = (0, 1e9)
_SECONDS: Final = (1e-3, 7 * 86_400)
_AT_ONCE: Final = (1, 65_536)
_TEMPERATURE: Final = (1e-3, 100)
_USER: Final[dict[str, Range]] = {
    # Temperature 0 asks a user's model for its likeliest line.
    "temperature": (0, 100),
    "max_tokens": _TOKENS,
    "candidates": (1, 1024),
}

RANGES: Final[dict[type[BaseModel], dict[str, Range]]] = {
    jobs.LoraSettings: {"rank": (1, 512), "alpha": (1e-6, 1e6)},
    jobs.OptimizerSettings: {
        "lr": (1e-12, 10),
        "betas": (0, 0.999999),
        "eps": (1e-15, 1),
        "weight_decay": (0, 100),
        "max_gradient_norm": (1e-9, 1e9),
    },
    jobs.SftSettings: {
        "epochs": (1, 1000),
        "batch_tokens": _BATCH_TOKENS,
        "micro_tokens": _BATCH_TOKENS,
        "warmup": _SHARE,
        "seed": _SEED,
    },
    jobs.Limits: {
        "kl": _THRESHOLD,
        "ratio_low": _THRESHOLD,
        "ratio_high": _THRESHOLD,
        "entropy_factor": _THRESHOLD,
        "malformed_factor": _THRESHOLD,
        "malformed_margin": _THRESHOLD,
        "patience": (1, 10**9),
    },
    jobs.EndpointUser: _USER | {"timeout": _SECONDS, "budget": _COUNT},
    jobs.AdapterUser: _USER,
    jobs.TaskPool: {"share": (1e-9, 1e9)},
    jobs.InProcessSource: {"slots": _AT_ONCE, "length": _TOKENS},
    jobs.EndpointSource: {
        "concurrency": _AT_ONCE,
        "max_requests_per_second": (1e-6, 1e6),
        "timeout": _SECONDS,
    },
    jobs.VllmSource: {"concurrency": _AT_ONCE, "timeout": _SECONDS},
    jobs.Sampler: {
        "groups": (1, 4096),
        "size": (2, 1024),
        "rollouts": _ROLLOUTS,
        "temperature": _TEMPERATURE,
        "max_tokens": _TOKENS,
        "momentum": _SHARE,
    },
    jobs.Probe: {"groups": _ROLLOUTS, "below": _SHARE},
    jobs.KnownPattern: {
        "recurrence": (0, 1e9),
        "streak": _COUNT,
        "absent": _COUNT,
        "pass_rate": _SHARE,
        "attempts": _COUNT,
        "passes": _COUNT,
        "learnability": _SHARE,
        "anchors": (-1e9, 1e9),
    },
    jobs.JobRounds: {
        "count": (2, 10**6),
        "history": _COUNT,
        "tasks": (1, 100_000),
        "explore": _SHARE,
        "replay": _SHARE,
    },
    jobs.ChooserOption: {"token": (0, 2**31 - 1)},
    jobs.Chooser: {"calibration": (-1e6, 1e6)},
    jobs.JobSpec: {
        "dialogue_count": _COUNT,
        "seed": _SEED,
        "checkpoints": _ROLLOUTS,
        "micro_tokens": _BATCH_TOKENS,
        "threads": (1, 1024),
    },
    algorithm.TisConfig: {"lo": (0, 1e9), "hi": (0, 1e9)},
    algorithm.KlConfig: {"beta": (0, 1e6)},
    algorithm.LossConfig: {
        "lo": _SHARE,
        "hi": (0, 1e6),
        "dual": (1, 1e6),
        "log_ratio_clamp": (1e-9, 1000),
        "t_max": _BATCH_TOKENS,
    },
    algorithm.RewardScale: {"offset": (-1e6, 1e6), "factor": (1e-6, 1e6)},
    algorithm.AdvantageConfig: {"eps": (0, 1e6)},
    algorithm.FilterConfig: {
        "min_dispersion": _THRESHOLD,
        "min_advantage": _THRESHOLD,
        "most": _SHARE,
        "refill": (0, 10_000),
    },
    algorithm.Algorithm: {"mini_batches": (1, 65_536), "epochs": (1, 1000)},
}

_SAMPLER: Final = ("rollouts", "groups", "size", "temperature", "max_tokens")
TRAINING: Final[dict[str, Range]] = {
    **{name: RANGES[jobs.Sampler][name] for name in _SAMPLER},
    "rounds": (1, RANGES[jobs.JobRounds]["count"][1]),
    "kl": RANGES[algorithm.KlConfig]["beta"],
    "lr": RANGES[jobs.OptimizerSettings]["lr"],
    "lora_rank": RANGES[jobs.LoraSettings]["rank"],
    "lora_alpha": RANGES[jobs.LoraSettings]["alpha"],
    "probe_groups": RANGES[jobs.Probe]["groups"],
    "warm_start_lr": RANGES[jobs.OptimizerSettings]["lr"],
    "warm_start_epochs": RANGES[jobs.SftSettings]["epochs"],
    "requests_per_second": RANGES[jobs.EndpointSource]["max_requests_per_second"],
    "threads": RANGES[jobs.JobSpec]["threads"],
}
"""Setting of the section `training` -> range of the number in a spec."""

MOST_ITEMS: Final = 100_000
_SIZES: Final[dict[tuple[type[BaseModel], str], int]] = {
    (jobs.LoraSettings, "targets"): 1000,
    (jobs.Chooser, "options"): 512,
    (jobs.VllmSource, "arguments"): 1000,
    (jobs.JobSpec, "pools"): 10_000,
    (jobs.JobSpec, "checkpoints"): 10_000,
}
"""Maximum items of lists that are shorter than `MOST_ITEMS`."""

MOST_CHARACTERS: Final = 4096
"""Maximum characters of a text: more than any path or URL has."""
MOST_BATCH: Final = 2**20
"""Maximum rollouts of one batch, which are in memory together."""


def find_excess(spec: jobs.JobSpec) -> str | None:
    """Describe the first value outside its range, with the remedy; None if there is none."""
    if spec.batch > MOST_BATCH:
        return (
            f"sampler.groups x sampler.size is {spec.batch:,} rollouts a batch, and at most "
            f"{MOST_BATCH:,} fit; lower one of them"
        )
    return next(_list_excesses(spec, ""), None)


def _list_excesses(model: BaseModel, path: str) -> Iterator[str]:
    ranges = RANGES.get(type(model), {})
    for name in type(model).model_fields:
        most = _SIZES.get((type(model), name), MOST_ITEMS)
        yield from _check_value(getattr(model, name), f"{path}{name}", ranges.get(name), most)


def _check_value(value: Any, path: str, limits: Range | None, most: int) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from _list_excesses(value, f"{path}.")
    elif isinstance(value, str):
        yield from _check_text(value, path)
    elif isinstance(value, tuple | dict):
        if len(value) > most:
            yield f"{path} has {len(value):,} items, and at most {most:,} are taken; shorten it"
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _check_value(item, f"{path}.{str(key)[:80]}", limits, most)
    elif limits is not None and value is not None and not limits[0] <= value <= limits[1]:
        yield (
            f"{path} is {show_number(value)}, outside of its range, {show_number(limits[0])} to "
            f"{show_number(limits[1])}; correct it"
        )


def _check_text(text: str, path: str) -> Iterator[str]:
    if len(text) > MOST_CHARACTERS:
        yield (
            f"{path} has {len(text):,} characters, and at most {MOST_CHARACTERS:,} are taken; "
            "shorten it"
        )
    if "\0" in text:
        yield f"{path} is {text[:80]!r}, and no name or path has the character NUL; leave it out"


def show_number(value: float) -> str:
    """Return a number in a few characters."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return f"an integer of {value.bit_length():,} bits"
    return f"{value:,}" if isinstance(value, int) else repr(value)
