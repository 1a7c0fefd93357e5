"""`kintsugi status` and the status page show the gates that wait."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.adapters.adoption import adopt
from daemon.config.settings import load
from daemon.core.app import App
from daemon.engine.reference.weights import CHECKPOINT
from daemon.status.page import read as read_page
from daemon.status.page import render
from daemon.status.stages import Mood, stops
from events.jobs import JobSpec, TaskPool
from events.learning import JobEnded, JobRequested
from events.serving import AdapterProduced, AdapterStaged
from ops.random_adapters import Adapters
from tests.consumers.cycling import cycle_id, directed, proposed, started
from tests.consumers.folding import at, ended
from tests.daemon.conftest import Kintsugi
from tests.daemon.methods.synthesis.users.conftest import decide
from tests.envs.model_server import ModelServer, said

JOB = "job-of-a-cycle"


@pytest.fixture
def url() -> str:
    """Where a model was that plays users, and is no more."""
    with ModelServer(lambda _: said("Hello.")) as server:
        return server.url


@pytest.fixture
def app(home: Path, monkeypatch: pytest.MonkeyPatch, adapters: Adapters, url: str) -> Iterator[App]:
    """A home with a cycle whose adapter is to be evaluated, beside users of an endpoint."""
    use_checkpoint(monkeypatch, CHECKPOINT)
    monkeypatch.setenv("KINTSUGI_IMPROVE__USERS", "model")
    monkeypatch.setenv("KINTSUGI_TRAINING__SOURCE", "endpoint")
    monkeypatch.setenv("KINTSUGI_MODELS__USER__URL", url)
    monkeypatch.setenv("KINTSUGI_MODELS__USER__MODEL", "customer")
    with App(load()) as app:
        app.append([ended("seen", at(1), base="reference")])
        app.settle()
        adopted = adopt(adapters["v1"], app.settings.adapters, CHECKPOINT, kind="agent")
        task = "shop/cancel/1"
        spec = JobSpec(
            job=JOB, base="reference", checkpoint=str(CHECKPOINT), environment="shop",
            pools=(TaskPool(name="p", tasks=(task,)),),
        )  # fmt: skip
        begun = started(base="reference")
        decide(
            app,
            begun,
            directed().model_copy(update={"cycle": begun.cycle}),
            proposed(task, base="reference"),
            JobRequested(
                job=JOB, cycle=cycle_id(base="reference"), alias="agent", base="reference",
                capability="cancel", minutes=1, spec=spec,
            ),
            JobEnded(job=JOB, outcome="trained", steps=1, rollouts=8, seconds=1.0),
            AdapterProduced(
                adapter="agent-1", alias="agent", base="reference", sha256=adopted.sha256,
                path=str(adopted.folder), capability="cancel", job=JOB, origin="job",
            ),
            AdapterStaged(
                adapter="agent-1", replicas=("http://one/v1",), distance=0.0, from_base=0.5
            ),
        )  # fmt: skip
        yield app


def use_checkpoint(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    agent = {"alias": "agent", "environment": "shop", "checkpoint": str(checkpoint)}
    monkeypatch.setenv("KINTSUGI_AGENTS", json.dumps([agent]))


def test_a_gate_that_waits_for_the_endpoint_of_its_users_is_shown(
    app: App, url: str, kintsugi: Kintsugi
) -> None:
    assert kintsugi("status", "--json").json["cycle"]["step"] == "evaluate"
    says = (
        "no trial of agent-1 runs: the next one waits for a slot (jobs.slots), and until the model "
        f"of its users answers at {url}"
    )
    assert kintsugi("status", "--json").json["gates"] == [
        {
            "adapter": "agent-1", "alias": "agent", "role": "agent", "says": says,
            "waits_for": [url], "setting": None,
        }
    ]  # fmt: skip
    text = " ".join(kintsugi("status").out.split())
    assert f"gate of agent-1 {says}" in text
    page = read_page(app)
    assert says in render(page)
    (stop,) = (item for item in stops(page.document, page.at) if item.name == "adapter")
    assert stop.mood is Mood.WORKS


def test_a_gate_that_waits_for_a_setting_wants_attention(
    app: App, tmp_path: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_checkpoint(monkeypatch, tmp_path / "nowhere")
    document = kintsugi("status", "--json").json
    (gate,) = document["gates"]
    assert (gate["setting"], gate["waits_for"]) == ("agents.checkpoint", [])
    assert f"in the setting agents is {tmp_path / 'nowhere'}, which has no" in gate["says"]
    with App(load()) as other:
        page = read_page(other)
    (stop,) = (item for item in stops(page.document, page.at) if item.name == "adapter")
    assert stop.mood is Mood.ATTENTION
    assert gate["says"] in stop.facts
    assert "agents.checkpoint" in (stop.remedy or "")


def test_a_gate_that_waits_for_nothing_is_not_shown(
    app: App, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_IMPROVE__USERS", "script")
    assert kintsugi("status", "--json").json["gates"] == []
