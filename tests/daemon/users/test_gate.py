"""The gate of an adapter that plays users, where the agent's checkpoint is wrong."""

import shutil
import time
from pathlib import Path
from typing import Final

from consumers.reads import serving
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import adopt
from daemon.config.settings import Agent
from daemon.core.app import App
from daemon.core.isolation import Breaks
from daemon.engine.reference.weights import CHECKPOINT
from daemon.jobs.runner_factory import user_trials_of
from daemon.serving.fleet import Fleet
from daemon.status.snapshot import situation
from daemon.users.worker import UserWorker
from events.envelope import utc_now
from events.lifecycle import State
from events.serving import AdapterProduced
from ops.random_adapters import Adapters
from tests.consumers.folding import at, ended
from tests.daemon.solver import letters
from tests.daemon.users.conftest import MakeApp, decide

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


def test_a_wrong_checkpoint_rejects_no_adapter_for_users_and_its_gate_goes_on(
    make_app: MakeApp, adapters: Adapters, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoint"
    app = make_app(
        base="reference", agents=(Agent(alias="agent", environment="shop", checkpoint=place),)
    )
    app.append([ended("seen", at(2), base="reference")])
    app.settle()
    adopted = adopt(adapters["v1"], app.settings.adapters, CHECKPOINT, kind="agent-user")
    decide(
        app,
        AdapterProduced(
            adapter=adopted.name, alias="agent", base="reference", sha256=adopted.sha256,
            path=str(adopted.folder), job="j", origin="job", role="user",
        ),
    )  # fmt: skip
    for _ in range(2):
        (note,) = work(app)
        assert note.startswith(f"{adopted.name} waits: the checkpoint of agent in the setting")
        assert f"is {place}, which has no config.json; correct it, and its gate goes on" in note
    document = situation(app)
    (gate,) = document["gates"]
    assert (gate["adapter"], gate["role"]) == (adopted.name, "user")
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
    assert row.user_gate is not None
    assert (row.state, row.user_gate.dialogues) == (State.REJECTED, 2)
    assert situation(app)["gates"] == []
