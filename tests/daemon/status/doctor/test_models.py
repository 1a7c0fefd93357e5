"""`kintsugi doctor` and the models by role: what keeps one from being asked is named."""

from pathlib import Path

from pydantic import SecretStr

from daemon.config.settings import Model, Models, ProposerModel, Settings, Upstream, UserModel
from daemon.core.app import App
from daemon.status.doctor.models import models
from daemon.status.doctor.report import examine
from tests.envs.model_server import ModelServer, refused, said


def examine_models(home: Path, configured: Models) -> tuple[bool, str]:
    with App(Settings(home=home, models=configured)) as app:
        return models(app)


def test_a_home_without_models_needs_none(tmp_path: Path) -> None:
    ok, detail = examine_models(tmp_path, Models())
    assert ok
    assert "none is configured" in detail


def test_each_role_with_an_endpoint_is_reached_and_nothing_is_asked(tmp_path: Path) -> None:
    with ModelServer(lambda _: said("Hello.")) as server:
        configured = Models(
            proposer=ProposerModel(url=server.url, model="large"),
            user=UserModel(url=server.url, model="customer"),
        )
        assert examine_models(tmp_path, configured) == (
            True,
            "proposer, user: the endpoints answer",
        )
        assert not server.requests


def test_a_role_whose_endpoint_refuses_the_key_or_is_away_is_named(tmp_path: Path) -> None:
    key = SecretStr("sk-secret")
    with ModelServer(lambda _: said("Hello.")) as server:
        server.models = refused(401, "no such key")
        configured = Models(
            analyzer=Model(url=server.url, api_key=key),
            proposer=ProposerModel(url="https://models.example.org/v1"),
        )
        ok, detail = examine_models(tmp_path, configured)
    assert not ok
    assert "models.analyzer: " in detail
    assert "API key" in detail
    assert "sk-secret" not in detail
    assert "models.proposer: host 'models.example.org' is not this machine" in detail
    away = Models(user=UserModel(url=server.url))
    with App(Settings(home=tmp_path, models=away)) as app:
        (check,) = (check for check in examine(app) if check.check == "models")
    assert not check.ok
    assert "models.user: " in check.detail
    assert "start the endpoint" in check.detail


def test_a_port_that_is_none_fails_its_check_and_no_other(tmp_path: Path) -> None:
    url = "http://127.0.0.1:99999/v1"
    settings = Settings(
        home=tmp_path, models=Models(user=UserModel(url=url)), upstreams=(Upstream(url=url),)
    )
    with App(settings) as app:
        checks = {check.check: check for check in examine(app)}
    assert checks["home"].ok
    assert not checks["models"].ok
    assert f"models.user: base URL '{url}' has the port 99999" in checks["models"].detail
    assert not checks["engines"].ok
