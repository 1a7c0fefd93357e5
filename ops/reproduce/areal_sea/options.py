"""The table's options and its plan."""

import argparse
from typing import Final

from ops.reproduce.areal_sea.settings import ENVIRONMENTS, SMALL, TAU2, WHOLE, Reproduction
from ops.reproduce.areal_sea.stages import NAME, build_stages, count_domain
from ops.reproduce.options import (
    WrongUsage,
    add_common_options,
    read_address,
    read_common_options,
)
from ops.reproduce.stages import Table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the table's options."""
    add_common_options(parser, sorted(ENVIRONMENTS), TAU2)
    add = parser.add_argument
    add("--proposer-model", help="writes plans and tasks; default: rules and templates")
    add("--proposer-base-url", type=read_address, help="default: --base-url")
    parser.set_defaults(table=TABLE)


def build_plan(options: argparse.Namespace) -> Reproduction:
    """Return the plan of the options. Raise WrongUsage."""
    defaults = ENVIRONMENTS[options.env]
    common = read_common_options(options, defaults)
    if options.source == "in_process":
        raise WrongUsage(
            "rollouts in a job's own process wait for no endpoint, and one arm's user is the base "
            "at the endpoint; give --source endpoint or vllm"
        )
    if options.proposer_base_url is not None and options.proposer_model is None:
        raise WrongUsage("--proposer-base-url names no model; give --proposer-model too")
    return Reproduction(
        **common,
        counts=SMALL if options.small else WHOLE.model_copy(update={"tasks": defaults.tasks}),
        proposer_model=options.proposer_model,
        proposer_base_url=options.proposer_base_url,
    )


TABLE: Final = Table(
    NAME,
    Reproduction,
    ENVIRONMENTS,
    build_plan,
    lambda plan: sum(count_domain(plan, domain) for domain in plan.domains),
    build_stages,
)
