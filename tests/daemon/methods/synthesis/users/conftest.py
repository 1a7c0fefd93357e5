"""Homes whose agent plays in `shop`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import Agent, Improve, Log, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.synthesis.user_training.examples import play_gold
from envs.shop.environment import Shop
from events.learning import Decision
from events.rollouts import RolloutContent, Task
from tests.consumers.folding import at, ended

MakeApp = Callable[..., App]


@pytest.fixture
def make_app(tmp_path: Path) -> Iterator[MakeApp]:
    """Make a home whose agent was seen on `base`; `users`, `candidates` and `synthesis` are of the
    settings `improve`, others those of Settings."""
    with ExitStack() as stack:

        def make(
            users: str = "trained", base: str = "base", candidates: int = 1,
            synthesis: str = "off", **fields: Any,
        ) -> App:  # fmt: skip
            agent = Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT)
            improve = Improve.model_validate(
                {"users": users, "users_candidates": candidates, "synthesis": synthesis}
            )
            values: dict[str, Any] = {"agents": (agent,), "improve": improve, **fields}
            settings = Settings(home=tmp_path / "home", log=Log(durability="process"), **values)
            app = stack.enter_context(App(settings))
            app.append([ended(f"seen on {base}", at(1), base=base)])
            app.settle()
            return app

        yield make


def decide(app: App, *decided: Decision) -> None:
    """Append decisions, each with an id of its own, and see them in the tables."""
    for data in decided:
        Decisions(app).take(data, "step", data.model_dump_json())


def play(app: App, *tasks: str, purpose: str = "probe", second: int = 10, **fields: Any) -> None:
    """Record dialogues of the oracle and the exact user that passed these tasks."""
    shop = Shop()
    entries = []
    for place, name in enumerate(tasks):
        messages = tuple(play_gold(shop, shop.task(name)))
        values: dict[str, Any] = {
            "task": Task(id=name, environment="shop"), "purpose": purpose, "success": True,
            "reward": 1.0, "source": "simulation", "simulator": "scripted",
            "content": RolloutContent(messages=messages), **fields,
        }  # fmt: skip
        entries.append(ended(f"{purpose} of {name}", at(second + place), **values))
    app.append(entries)
    app.settle()
