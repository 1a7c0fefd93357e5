"""The gate of an adapter that plays users, where the agent's checkpoint is wrong."""

import shutil
import time
from pathlib import Path
from typing import Final

import pytest

from consumers.reads import serving
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import adopt
from daemon.config.settings import Agent
from daemon.core.app import App
from daemon.core.isolation import Breaks
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.synthesis.users.worker import UserWorker, user_trials_of
from daemon.serving.fleet import Fleet
from daemon.status.snapshot import situation
from events.codec import decode
from events.envelope import utc_now
from events.lifecycle import State
from events.log import read_all
from events.serving import AdapterMoved, AdapterProduced
from ops.random_adapters import Adapters
from tests.consumers.deciding import staged
from tests.consumers.folding import at, ended
from tests.daemon.methods.synthesis.users.conftest import MakeApp, decide
from tests.daemon.solver import letters

PATIENCE: Final = 120.0


def work(app: App) -> list[str]:
    """A round of another worker, whose gates are short."""
    trials = user_trials_of(app.settings)
    worker = UserWorker(app, Fleet((), app.home), trials, utc_now, dialogues=2)
    breaks = Breaks()
    notes = worker.advance(breaks)
    assert breaks.troubles == []
    return notes


def work_until(app: App, text: str) -> str:
    """Work until something is said that has a text; return that."""
    deadline = time.monotonic() + PATIENCE
    while not (notes := [note for note in work(app) if text in note]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return notes[0]


def read_row(app: App) -> AdapterRow:
    with app.reading() as connection:
        (row,) = serving.list_user_adapters(connection, "agent")
    return row


def produce(app: App, adapters: Adapters) -> str:
    """Record an adapter that a job left for users; its name."""
    adopted = adopt(adapters["v1"], app.settings.adapters, CHECKPOINT, kind="agent-user")
    decide(
        app,
        AdapterProduced(
            adapter=adopted.name, alias="agent", base="reference", sha256=adopted.sha256,
            path=str(adopted.folder), job="j", origin="job", role="user",
        ),
    )  # fmt: skip
    return adopted.name


def count_verdicts(app: App) -> int:
    """Count the verdicts on the log, those that change nothing among them."""
    pages = read_all(app.log, "learning", 0, 0, app.log.end("learning")[0])
    return sum(decode(r).envelope.type == "UserEvaluated" for page in pages for r in page)


@pytest.mark.long
def test_one_that_is_staged_again_after_its_gate_is_judged_anew_once(
    make_app: MakeApp, adapters: Adapters
) -> None:
    app = make_app(base="reference")
    name = produce(app, adapters)
    work_until(app, "failed its gate")
    first = read_row(app).role_gate
    unloaded = AdapterMoved(adapter=name, state="unloaded", reason="its reason")
    decide(app, unloaded, staged(name))
    assert read_row(app).state is State.STAGED
    work_until(app, "failed its gate")
    row = read_row(app)
    assert row.state is State.REJECTED
    assert row.role_gate != first, "of other dialogues"
    assert work(app) == []
    assert count_verdicts(app) == 2


def test_the_gate_of_one_that_is_retired_is_stopped(make_app: MakeApp, adapters: Adapters) -> None:
    app = make_app(base="reference")
    name = produce(app, adapters)
    worker = UserWorker(app, Fleet((), app.home), user_trials_of(app.settings), utc_now)
    assert worker.advance(Breaks()) == [f"{name}: its gate began, 600 dialogues"]
    decide(app, AdapterMoved(adapter=name, state="rejected", reason="an operator retired it"))
    reason = f"{name} is not to be measured any more"
    assert worker.advance(Breaks()) == [f"the gate of {name} is told to stop: {reason}"]
    assert worker.advance(Breaks()) == []


@pytest.mark.long
def test_a_wrong_checkpoint_rejects_no_adapter_for_users_and_its_gate_goes_on(
    make_app: MakeApp, adapters: Adapters, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoint"
    app = make_app(
        base="reference", agents=(Agent(alias="agent", environment="shop", checkpoint=place),)
    )
    app.append([ended("seen", at(2), base="reference")])
    app.settle()
    name = produce(app, adapters)
    for _ in range(2):
        (note,) = work(app)
        assert note.startswith(f"{name} waits: the checkpoint of agent in the setting")
        assert f"is {place}, which has no config.json; correct it, and its gate goes on" in note
    document = situation(app)
    (gate,) = document["gates"]
    assert (gate["adapter"], gate["role"]) == (name, "user")
    assert (gate["setting"], gate["says"]) == ("agents.checkpoint", note)
    assert note in document["users"][0]["says"]
    letters.checkpoint(place)
    note = work_until(app, "waits: ")
    assert f"does not fit the checkpoint {place}: " in note
    assert note.endswith("; correct checkpoint in the setting agents")
    assert work(app) == [note], "it is not played again as long as nothing changes"
    assert read_row(app).state is State.PRODUCED
    shutil.rmtree(place)
    shutil.copytree(CHECKPOINT, place)
    work_until(app, "failed its gate")
    row = read_row(app)
    assert row.role_gate is not None
    assert (row.state, row.role_gate.dialogues) == (State.REJECTED, 2)
    assert situation(app)["gates"] == []
