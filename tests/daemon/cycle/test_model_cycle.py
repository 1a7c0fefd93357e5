"""Cycles whose tasks a model writes: what it has answered is asked once. The model is a real HTTP
server; tables, log, environment, checks and folds are real."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from consumers.reads import learning
from consumers.reads.scheduling import CYCLE_START
from daemon.config.settings import Agent, Improve, Log, Models, Proposer, ProposerModel, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader, TickResult
from daemon.cycle.plan import plan_cycle
from daemon.cycle.planner import CyclePlanner
from daemon.engine.reference.weights import CHECKPOINT
from daemon.proposer.probe import Engine
from events.learning import JobEnded
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import record, tasks
from tests.daemon.cycle.test_planner import QUIET
from tests.daemon.methods.synthesis.models.shop_model import ShopModel
from tests.daemon.methods.synthesis.models.test_parts import answer_all
from tests.envs.model_server import Json, ModelServer, Reply

Answering = Callable[[Json], Reply | Json]

DOWN = Engine("http://127.0.0.1:9/v1", None)
"""An engine that cannot be reached: nothing listens on the port `discard`."""


@contextmanager
def home(folder: Path, url: str) -> Iterator[App]:
    """A home with a failed task, whose next cycle is due and has the model at `url` write tasks."""
    settings = Settings(
        home=folder, log=Log(durability="process"), scheduler=QUIET,
        agents=(Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
        proposer=Proposer(tasks=6, explore=0.0),
        models=Models(proposer=ProposerModel(url=url, model="big")),
        improve=Improve(synthesis="always", synthesis_plans=1, synthesis_rounds=1),
    )  # fmt: skip
    with App(settings) as app:
        record(app, "agent", "base", tasks(("cancel",), 1, 2**24))
        app.settle()
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        yield app


@contextmanager
def lead(app: App, planner: CyclePlanner) -> Iterator[Callable[[], TickResult]]:
    """The looks of a leader, which resigns at the end."""
    leadership = Leadership(app)
    yield Leader(app, planner, leadership).tick
    leadership.resign()


def test_a_cycle_that_waits_for_an_engine_asks_the_model_once(tmp_path: Path) -> None:
    with (
        ModelServer(answer_all(ShopModel())) as server,
        home(tmp_path / "home", server.url) as app,
        lead(app, CyclePlanner(app, [DOWN])) as tick,
    ):
        assert "the tasks of agent wait" in tick().troubles[0]
        asked = len(server.requests)
        assert asked > 0
        assert "the tasks of agent wait" in tick().troubles[0]
        assert len(server.requests) == asked


def test_each_cycle_asks_the_model_anew(tmp_path: Path) -> None:
    with (
        ModelServer(answer_all(ShopModel())) as server,
        home(tmp_path / "home", server.url) as app,
        lead(app, CyclePlanner(app)) as tick,
    ):
        tick()
        asked = len(server.requests)
        assert asked > 0
        with app.reading() as connection:
            cycle = learning.open_cycle(connection, "agent")
        assert cycle is not None
        assert cycle.job is not None
        Decisions(app).take(JobEnded(job=cycle.job, outcome="failed"), "ended", cycle.job)
        record(app, "agent", "base", tasks(("cancel",), 1, 2**24 + 1))
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        tick()
        tick()
        assert len(server.requests) > asked


def test_a_process_that_is_told_to_stop_asks_no_more(tmp_path: Path) -> None:
    stop = threading.Event()
    model = answer_all(ShopModel())

    def answer(body: Json) -> Reply | Json:
        stop.set()
        return model(body)

    with (
        ModelServer(answer) as server,
        home(tmp_path / "home", server.url) as app,
        lead(app, CyclePlanner(app, stopping=stop.is_set)) as tick,
    ):
        assert "told to stop" in tick().troubles[0]
        assert len(server.requests) == 1
        stop.clear()
        with app.reading() as connection:
            cycle = learning.open_cycle(connection, "agent")
        assert cycle is not None
        assert (cycle.accepted, cycle.rejected) == (0, 0)


def test_a_stop_waits_for_no_answer(tmp_path: Path) -> None:
    stop, over = threading.Event(), threading.Event()
    answers = []

    def answer(body: Json) -> Reply | Json:
        stop.set()
        over.wait(30)
        answers.append(body)
        return Reply(b"{}")

    with (
        ModelServer(answer) as server,
        home(tmp_path / "home", server.url) as app,
        lead(app, CyclePlanner(app, stopping=stop.is_set)) as tick,
    ):
        assert "told to stop" in tick().troubles[0]
        assert answers == []
        over.set()


def test_a_dry_run_asks_no_model_to_write_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kintsugi: Kintsugi
) -> None:
    with (
        ModelServer(answer_all(ShopModel())) as server,
        home(tmp_path / "home", server.url) as app,
    ):
        planned = plan_cycle(app, "agent")
        assert any(data.plan is not None for data in planned.accepted)
        assert {data.text_by for data in planned.accepted} == {None}
        agent = {"alias": "agent", "environment": "shop", "checkpoint": str(CHECKPOINT)}
        monkeypatch.setenv("KINTSUGI_HOME", str(app.home))
        monkeypatch.setenv("KINTSUGI_AGENTS", json.dumps([agent]))
        monkeypatch.setenv("KINTSUGI_MODELS__PROPOSER__URL", server.url)
        monkeypatch.setenv("KINTSUGI_MODELS__PROPOSER__MODEL", "big")
        monkeypatch.setenv("KINTSUGI_IMPROVE__SYNTHESIS", "always")
        assert "the proposer big was not asked" in kintsugi("cycle", "plan", "agent").err
        assert server.requests == []
