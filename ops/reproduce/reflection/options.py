"""The table's options and its plan."""

import argparse
from pathlib import Path
from typing import Final

from envs.bfcl.cases import find_splits
from envs.bfcl.classes import NoBfclClasses, require
from ops.reproduce.options import (
    BENCHMARKS,
    WrongUsage,
    add_common_options,
    count_tasks,
    read_common_options,
)
from ops.reproduce.reflection.settings import (
    ENVIRONMENTS,
    PRESETS,
    SMALL,
    WHOLE,
    Reproduction,
)
from ops.reproduce.reflection.stages import NAME, build_stages
from ops.reproduce.stages import Table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the table's options."""
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


TABLE: Final = Table(
    NAME,
    Reproduction,
    ENVIRONMENTS,
    build_plan,
    lambda plan: count_tasks(plan, split=plan.split, first=plan.counts.tasks),
    build_stages,
)
