"""What a model has answered is not asked again: a real server that answers, or fails."""

import pytest

from daemon.config.settings import Models, ProposerModel, Settings
from daemon.methods.synthesis.engine import Parts
from daemon.methods.synthesis.models.parts import make_model_parts
from daemon.methods.synthesis.protocols import NoTask, PlanRequest
from envs.shop.environment import Shop
from tests.daemon.methods.synthesis.models.shop_model import PLAN, SEED, ShopModel
from tests.daemon.methods.synthesis.models.test_parts import answer_all
from tests.daemon.methods.synthesis.models.test_reviser import HISTORY
from tests.envs.model_server import ModelServer, said

SHOP = Shop()


def open_parts(url: str) -> Parts:
    """The parts with the model at this URL."""
    proposer = ProposerModel(url=url, model="big")
    parts = make_model_parts(SHOP, Settings(models=Models(proposer=proposer)))
    assert parts is not None
    return parts


def test_plans_and_tasks_and_revisions_come_back_without_a_request() -> None:
    with ModelServer(answer_all(ShopModel())) as server:
        parts = open_parts(server.url)

        def ask() -> tuple[object, ...]:
            plans = parts.planner(SHOP, PlanRequest("seed", 1))
            return plans, parts.writer.write(PLAN, SEED), parts.reviser.revise(SHOP, HISTORY)

        first, asked = ask(), len(server.requests)
        assert asked > 0
        assert ask() == first
        assert len(server.requests) == asked
        parts.writer.write(PLAN, SEED + 1)
        assert len(server.requests) > asked


def test_reasons_and_troubles_come_back_as_well() -> None:
    with ModelServer(lambda _: said("no")) as server:
        parts = open_parts(server.url)

        def ask() -> tuple[str, str]:
            with pytest.raises(NoTask) as refusal:
                parts.writer.write(PLAN, SEED)
            parts.reviser.revise(SHOP, HISTORY)
            return str(refusal.value), parts.reviser.trouble

        first, asked = ask(), len(server.requests)
        assert "gave no answer of the schema" in first[1]
        assert ask() == first
        assert len(server.requests) == asked
