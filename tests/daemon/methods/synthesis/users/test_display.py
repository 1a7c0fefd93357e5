"""What commands, status page and metrics show of adapters that play users."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli.methods import build_loop_metrics
from daemon.config.settings import load
from daemon.core.app import App
from daemon.engine.reference.weights import CHECKPOINT
from daemon.metrics.families import Sheet
from daemon.metrics.loop import list_families, read
from daemon.status.page import read as read_page
from daemon.status.page import render
from events.envelope import utc_now
from events.learning import JobEnded
from tests.consumers.deciding import staged
from tests.consumers.folding import at, ended
from tests.consumers.playing_users import user_evaluated, user_produced, user_requested
from tests.daemon.conftest import Kintsugi
from tests.daemon.methods.synthesis.users.conftest import decide


@pytest.fixture
def app(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """A home in which `u` plays users and `v` failed its gate."""
    agents = f'[{{"alias": "agent", "environment": "shop", "checkpoint": "{CHECKPOINT}"}}]'
    monkeypatch.setenv("KINTSUGI_AGENTS", agents)
    monkeypatch.setenv("KINTSUGI_IMPROVE__USERS", "trained")
    with App(load()) as app:
        error = {"purpose": "evaluate", "success": None, "termination": "user_error"}
        app.append([ended("seen", at(1)), ended("erred", utc_now(), **error)])
        app.settle()
        decide(app, user_requested("job-u"), user_produced("u", job="job-u"))
        decide(app, user_evaluated("u"), staged("u"))
        decide(app, user_produced("v"), user_evaluated("v", passed=False, previous="u"))
        yield app


def test_status_says_who_plays_users(app: App, kintsugi: Kintsugi) -> None:
    (practice,) = kintsugi("status", "--json").json["users"]
    assert practice == {
        "alias": "agent", "base": "base", "setting": "trained", "plays": "u", "step": None,
        "dialogues": 0, "persons": 0, "says": "u plays them, trained and through its gate",
    }  # fmt: skip
    assert "u plays them, trained and through its gate" in kintsugi("status").out
    page = render(read_page(app))
    assert "users of agent: u plays them, trained and through its gate" in page


def test_status_says_that_jobs_with_a_models_users_have_one_round(
    app: App, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_TRAINING__ROUNDS", "3")
    (practice,) = kintsugi("status", "--json").json["users"]
    assert "gate; jobs have one round and not 3 (training.rounds)" in practice["says"]
    decide(app, user_evaluated("u", passed=False))
    (practice,) = kintsugi("status", "--json").json["users"]
    assert "training.rounds" not in practice["says"], "the script plays"


def test_status_says_why_the_script_plays(
    app: App, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide(app, user_evaluated("u", passed=False))
    (practice,) = kintsugi("status", "--json").json["users"]
    assert (practice["plays"], practice["step"]) == ("script", "train")
    assert practice["says"] == "the script plays them: job job-u trains one now"
    decide(app, JobEnded(job="job-u", outcome="failed", reason="it broke"))
    (practice,) = kintsugi("status", "--json").json["users"]
    assert "0 simulated dialogues are recorded and accepted" in practice["says"]
    monkeypatch.setenv("KINTSUGI_AGENTS", '[{"alias": "agent"}]')
    (practice,) = kintsugi("status", "--json").json["users"]
    assert "agent has no environment in the setting agents" in practice["says"]
    monkeypatch.setenv("KINTSUGI_IMPROVE__USERS", "script")
    (practice,) = kintsugi("status", "--json").json["users"]
    assert (practice["plays"], practice["says"]) == ("script", "script plays them")


def test_adapters_show_role_and_gate(app: App, kintsugi: Kintsugi) -> None:
    lines = {line["adapter"]: line for line in kintsugi("adapters", "ls", "--json").json}
    assert (lines["u"]["role"], lines["u"]["user_gate"]["passed"]) == ("user", True)
    assert (lines["v"]["state"], lines["v"]["user_gate"]["passed"]) == ("rejected", False)
    table = kintsugi("adapters", "ls").out
    assert "playing users" in table
    assert "REJECT" in table
    document = kintsugi("adapters", "show", "v", "--json").json
    assert (document["role"], document["user_gate"]["previous"]) == ("user", "u")
    shown = kintsugi("adapters", "show", "v").out
    assert "it answers no client" in shown
    assert "violations" in shown
    assert "30 of 600" in shown


def test_explain_names_job_dialogues_and_gate(app: App, kintsugi: Kintsugi) -> None:
    node = kintsugi("explain", "u", "--json").json
    assert "plays users and answers no client" in node["said"]
    assert "passed its gate of 600 dialogues: violations 3 of 600 (at most 1.29%" in node["said"]
    (job,) = node["because"]
    assert "teaches a user by 0 recorded dialogues and 0 of the oracle" in job["said"]
    assert "in place of" not in kintsugi("explain", "v", "--json").json["said"]


def test_metrics_count_gates_and_errors(app: App) -> None:
    methods = build_loop_metrics()
    sheet = Sheet(list_families(methods))
    read(app, sheet, methods=methods)
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in sheet.metrics()
        for sample in family.samples
        if sample.name.startswith("kintsugi_user")
    }
    assert values["kintsugi_user_player_info", "agent", "trained"] == 1
    assert values["kintsugi_user_gates_total", "agent", "passed"] == 1
    assert values["kintsugi_user_gates_total", "agent", "failed"] == 1
    assert values["kintsugi_user_gate_fault_ratio", "agent", "violations"] == 0.068
    assert values["kintsugi_user_errors", "agent", "evaluate"] == 1
