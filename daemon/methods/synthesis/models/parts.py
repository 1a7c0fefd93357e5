"""The data engine with a model in it, if the settings name one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from daemon.methods.synthesis.engine import Parts, make_parts
from daemon.methods.synthesis.models.client import open_client
from daemon.methods.synthesis.models.memory import remember_answers
from daemon.methods.synthesis.models.planner import ModelPlanner
from daemon.methods.synthesis.models.reviser import ModelReviser
from daemon.methods.synthesis.models.writer import ModelWriter
from envs.environment import Environment

if TYPE_CHECKING:
    from daemon.config.settings import Settings


def make_model_parts(
    environment: Environment,
    settings: "Settings",
    directive: str = "",
    stopping: Callable[[], bool] = lambda: False,
) -> Parts | None:
    """Return parts in which the model of `models.proposer` plans, writes and revises, and rules
    replace it where it gives nothing; None without a model. They raise CannotSample once `stopping`
    returns true. For one cycle: budget and remembered answers are the cycle's."""
    client = open_client(settings, "proposer", stopping)
    if client is None:
        return None
    by_rule = make_parts(environment)
    return remember_answers(
        Parts(
            ModelPlanner(client, directive),
            ModelWriter(environment, client, directive, by_rule.writer),
            by_rule.roller,
            by_rule.examiner,
            ModelReviser(client, by_rule.reviser),
        )
    )
