"""Who plays users: by the setting, the tables, and what the environment allows."""

from pathlib import Path
from typing import Any

import pytest

from consumers.reads.serving import list_user_adapters
from daemon.config.settings import Agent, Environments, Models, Training, UserModel
from daemon.core.app import App
from daemon.core.decision_log import DecisionRefusal
from daemon.engine.reference.weights import CHECKPOINT
from daemon.jobs.user_endpoints import KEY_VARIABLE
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.users.players import find_obstacle, find_user
from daemon.methods.synthesis.users.practice import read_user_practices
from events.jobs import AdapterUser, EndpointUser, ModelUser
from events.lifecycle import State
from events.serving import AdapterMoved
from tests.consumers.deciding import decided, evaluated, staged
from tests.consumers.playing_users import user_evaluated, user_produced
from tests.daemon.methods.synthesis.users.conftest import MakeApp, decide

HERE = UserModel(url="http://127.0.0.1:9/v1", model="m", candidates=3, line_tokens=99)
ELSEWHERE = UserModel(url="https://models.example/v1", model="m")
REMOTE = Training(source="vllm")


def who(app: App, base: str = "base") -> ModelUser | None:
    with app.reading() as connection:
        return find_user(connection, app.settings, "agent", base)


def test_an_adapter_plays_from_the_moment_that_it_passed_and_is_staged(make_app: MakeApp) -> None:
    app = make_app()
    assert who(app) is None
    decide(app, user_produced("u"))
    assert who(app) is None
    decide(app, user_evaluated("u"))
    assert who(app) is None, "a prober would ask engines for what they do not have"
    decide(app, staged("u"))
    user = AdapterUser(adapter="u", folder="/adapters/u", sha256="0" * 64, candidates=1)
    assert who(app) == user
    assert who(app, "another base") is None
    decide(app, AdapterMoved(adapter="u", state="draining", reason="no longer wanted"))
    assert who(app) is None


def test_an_adapter_chooses_from_as_many_lines_as_in_its_gate(make_app: MakeApp) -> None:
    app = make_app(candidates=4)
    decide(app, user_produced("u"), user_evaluated("u"), staged("u"))
    user = who(app)
    assert isinstance(user, AdapterUser)
    assert user.candidates == 1, "its gate measured no candidates"
    with app.reading() as connection:
        (practice,) = read_user_practices(connection, app.settings)
    assert "measured with 1 candidates" in practice.says
    assert "improve.users_candidates = 4 is for the next one" in practice.says
    measured = user_evaluated("v", previous="u").model_copy(update={"candidates": 4})
    decide(app, user_produced("v"), measured, staged("v"))
    user = who(app)
    assert isinstance(user, AdapterUser)
    assert (user.adapter, user.candidates, user.temperature) == ("v", 4, 1.0)
    with app.reading() as connection:
        (practice,) = read_user_practices(connection, app.settings)
    assert "candidates" not in practice.says


def test_an_adapter_plays_no_written_tasks_in_manners_that_its_gate_did_not_have(
    make_app: MakeApp,
) -> None:
    app = make_app(synthesis="auto")
    decide(app, user_produced("u"), user_evaluated("u"), staged("u"))
    assert who(app) is None, "it was measured in the words of the generator alone"
    with app.reading() as connection:
        (practice,) = read_user_practices(connection, app.settings)
    assert practice.plays == "script"
    assert "u was measured in the words of the generator alone" in practice.says
    measured = user_evaluated("v", previous="u").model_copy(update={"manners": tuple(MANNERS)})
    decide(app, user_produced("v"), measured, staged("v"))
    user = who(app)
    assert user is not None
    assert user.simulator == "v"
    settings = app.settings.improve.model_copy(update={"synthesis": "off"})
    plain = app.settings.model_copy(update={"improve": settings})
    with app.reading() as connection:
        assert find_user(connection, plain, "agent", "base") == user, "what it knows is enough"
        (row,) = [r for r in list_user_adapters(connection, "agent") if r.adapter == "u"]
    assert row.state is State.DRAINING, "one of two keeps its slot"


def test_a_gate_that_fails_keeps_the_one_before(make_app: MakeApp) -> None:
    app = make_app()
    decide(app, user_produced("u"), user_evaluated("u"), staged("u"))
    decide(app, user_produced("v"), user_evaluated("v", passed=False, previous="u"))
    user = who(app)
    assert user is not None
    assert user.simulator == "u"
    decide(app, user_produced("w"), user_evaluated("w", previous="u"), staged("w"))
    user = who(app)
    assert user is not None
    assert user.simulator == "w"


def test_what_was_measured_as_an_agent_plays_no_users_by_that(make_app: MakeApp) -> None:
    app = make_app()
    decide(app, user_produced("u"), staged("u"))
    for data in (evaluated("u"), decided("u", "PROMOTE")):
        with pytest.raises(DecisionRefusal, match="u plays users, and was measured as an agent"):
            decide(app, data)
    assert who(app) is None
    decide(app, user_evaluated("u"))
    assert who(app) is not None


def test_the_setting_decides_and_the_script_plays_by_default(make_app: MakeApp) -> None:
    app = make_app("script")
    decide(app, user_produced("u"), user_evaluated("u"), staged("u"))
    assert who(app) is None


def test_the_model_of_the_settings_plays_with_a_key_that_jobs_find(make_app: MakeApp) -> None:
    app = make_app("model", models=Models(user=HERE), training=REMOTE)
    expected = EndpointUser(
        url=HERE.url,
        model="m",
        temperature=0.7,
        max_tokens=99,
        candidates=3,
        timeout=120.0,
        budget=10**9,
    )
    assert who(app) == expected
    assert expected.simulator == "m (best of 3)"
    keyed = UserModel(url=HERE.url, model="m", api_key="secret")
    app = make_app("model", models=Models(user=keyed), training=REMOTE)
    user = who(app)
    assert isinstance(user, EndpointUser)
    assert user.api_key_variable == KEY_VARIABLE
    assert "secret" not in user.model_dump_json()


@pytest.mark.parametrize(
    ("users", "fields", "words"),
    [
        ("trained", {"agents": ()}, "agent has no environment"),
        ("model", {"agents": (Agent(alias="agent"),)}, "agent has no environment"),
        ("trained", {"agents": (Agent(alias="agent", environment="shop"),)}, "has no checkpoint"),
        ("model", {"training": REMOTE}, "models.user.url names none"),
        ("model", {"models": Models(user=HERE)}, "training.source to"),
        (
            "model",
            {"models": Models(user=ELSEWHERE), "training": REMOTE},
            "models.user.allowed_hosts",
        ),
    ],
)
def test_what_the_settings_do_not_allow_is_said_and_the_script_plays(
    make_app: MakeApp, users: str, fields: dict[str, Any], words: str
) -> None:
    app = make_app(users, **fields)
    obstacle = find_obstacle(app.settings, "agent")
    assert obstacle is not None
    assert words in obstacle
    assert who(app) is None


def test_tasks_without_a_script_have_no_exact_user(make_app: MakeApp, tmp_path: Path) -> None:
    file = tmp_path / "talks.py"
    file.write_text(
        "from envs.shop.environment import Shop\n"
        "\n"
        "class Talks(Shop):\n"
        "    name = 'talks'\n\n"
        "    def generate(self, capability, seed):\n"
        "        task = super().generate(capability, seed)\n"
        "        return task.model_copy(update={'script': None})\n"
    )
    agent = Agent(alias="agent", environment=str(file), checkpoint=CHECKPOINT)
    app = make_app(agents=(agent,), environments=Environments(paths=(file,)))
    obstacle = find_obstacle(app.settings, "agent")
    assert obstacle is not None
    assert "have no exact user" in obstacle
    assert find_obstacle(make_app("script").settings, "agent") is None
