"""From options to the plan of the table."""

import argparse
from typing import Final

from envs.environment import UnknownTask
from envs.task import GENERATED
from ops.reproduce.homes import open_plan_environment
from ops.reproduce.options import (
    BENCHMARKS,
    WrongUsage,
    add_common_options,
    read_common_options,
)
from ops.reproduce.sentinel.settings import ENVIRONMENTS, SMALL, WHOLE, Reproduction
from ops.reproduce.sentinel.stages import NAME, build_stages
from ops.reproduce.stages import Table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the table's options."""
    add_common_options(parser, sorted(ENVIRONMENTS), "retail")
    parser.set_defaults(table=TABLE)


def build_plan(options: argparse.Namespace) -> Reproduction:
    """Return the reproduction that the options ask for. Raises WrongUsage."""
    defaults = ENVIRONMENTS[options.env]
    common = read_common_options(
        options, defaults.split, defaults.split == GENERATED, defaults.max_tokens
    )
    counts = SMALL if options.small else WHOLE.model_copy(update={"tasks": defaults.tasks})
    return Reproduction(**common, counts=counts, traffic=defaults.traffic)


def count_evaluated(plan: Reproduction) -> int:
    """Return the number of evaluated tasks. Raises WrongUsage where the real ones are missing."""
    from ops.reproduce.sentinel.training import select_evaluated

    try:
        environment = open_plan_environment(plan)
        return sum(1 for _ in select_evaluated(plan).tasks(environment, plan.seed))
    except UnknownTask as error:
        raise WrongUsage(f"{error}; {BENCHMARKS} names {plan.benchmarks}") from error


TABLE: Final = Table(
    NAME,
    Reproduction,
    build_plan,
    count_evaluated,
    build_stages,
    lambda plan: ENVIRONMENTS[plan.env].tokens,
)
