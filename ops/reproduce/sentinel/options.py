"""The table's options and its plan."""

import argparse
from typing import Final

from ops.reproduce.options import add_common_options, count_tasks, read_common_options
from ops.reproduce.sentinel.commands import select_evaluated
from ops.reproduce.sentinel.settings import ENVIRONMENTS, SMALL, WHOLE, Reproduction
from ops.reproduce.sentinel.stages import NAME, build_stages
from ops.reproduce.stages import Table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the table's options."""
    add_common_options(parser, sorted(ENVIRONMENTS), "retail")
    parser.set_defaults(table=TABLE)


def build_plan(options: argparse.Namespace) -> Reproduction:
    """Return the plan of the options. Raise WrongUsage."""
    defaults = ENVIRONMENTS[options.env]
    common = read_common_options(options, defaults)
    counts = SMALL if options.small else WHOLE.model_copy(update={"tasks": defaults.tasks})
    return Reproduction(**common, counts=counts, traffic=defaults.traffic)


TABLE: Final = Table(
    NAME,
    Reproduction,
    ENVIRONMENTS,
    build_plan,
    lambda plan: count_tasks(plan, **select_evaluated(plan)),
    build_stages,
)
