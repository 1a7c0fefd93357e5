"""What the role `work` does for adapters that play users, without engines."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from daemon.config.settings import Agent
from daemon.core.isolation import Breaks
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.synthesis.users import worker
from tests.consumers.folding import at, ended
from tests.consumers.playing_users import user_produced
from tests.daemon.methods.synthesis.users.conftest import MakeApp, decide


def test_the_tasks_of_each_agents_gate_are_drawn_once(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("agent", "other")
    app = make_app(
        agents=tuple(Agent(alias=name, environment="shop", checkpoint=CHECKPOINT) for name in names)
    )
    app.append([ended("seen", at(2), alias="other", base="base")])
    app.settle()
    decide(app, *(user_produced(f"{name}-user", alias=name) for name in names))
    drawn: list[str] = []

    class Gate:
        def __init__(self, _app: Any, _runner: Any, _agent: Any, row: Any, *_: Any) -> None:
            drawn.append(row.adapter)

        def advance(self) -> Iterator[str]:
            return iter(())

    monkeypatch.setattr(worker, "UserGate", Gate)
    nothing: Any = None
    users = worker.UserWorker(app, nothing, nothing, lambda: datetime.now(UTC))
    breaks = Breaks()
    for _ in range(3):
        users.advance(breaks)
    assert breaks.troubles == []
    assert sorted(drawn) == ["agent-user", "other-user"]
