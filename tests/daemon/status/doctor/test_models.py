"""`kintsugi doctor` and the models by role: what keeps one from being asked is named."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from daemon.config.settings import (
    Improve,
    Model,
    Models,
    ProposerModel,
    Settings,
    Upstream,
    UserModel,
)
from daemon.core.app import App
from daemon.status.doctor.models import models
from daemon.status.doctor.report import examine
from tests.envs.model_server import ModelServer, Reply, refused, said


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
        ok, detail = examine_models(tmp_path, configured)
        assert ok
        assert detail.startswith("proposer, user: the endpoints answer; models.proposer: ")
        for name in ("large", "customer"):
            assert f"{server.url} lists no models, so whether it serves '{name}' shows" in detail
        assert not server.requests


def examine_list(
    home: Path, reply: Reply, name: str = "large", root: str = "/v1"
) -> tuple[bool, str]:
    """What the check says of a proposer whose endpoint answers so for its list of models."""
    with ModelServer(lambda _: said("Hello.")) as server:
        server.models = reply
        url = server.url.removesuffix("/v1") + root
        return examine_models(home, Models(proposer=ProposerModel(url=url, model=name)))


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (refused(500, "on fire"), "answers HTTP 500: on fire; mend or restart the endpoint"),
        (Reply(b"", 302, {"location": "/login"}), "redirects to /login (HTTP 302)"),
        (Reply(b"<html>Log in</html>"), "answers with no list of models; it begins <html>"),
        (Reply(b'{"data": [{"id": "small"}, {"id": "tiny"}]}'), "/v1 lists small, tiny, and "),
    ],
)
def test_an_endpoint_that_does_not_serve_fails_with_the_remedy(
    tmp_path: Path, reply: Reply, problem: str
) -> None:
    ok, detail = examine_list(tmp_path, reply)
    assert not ok
    assert detail.startswith("models.proposer: ")
    assert problem in detail
    assert "; " in detail


def test_a_model_is_served_where_the_list_has_its_name(tmp_path: Path) -> None:
    reply = Reply(b'{"data": [{"id": "large"}, {"id": "llama3:latest"}]}')
    for name in ("large", "llama3"):
        assert examine_list(tmp_path, reply, name) == (True, "proposer: the endpoints answer")
    assert (
        "models.proposer.model is 'nosuch'; correct the name"
        in (examine_list(tmp_path, reply, "nosuch")[1])
    )


def test_an_endpoint_without_a_list_answers_and_its_model_is_not_known(tmp_path: Path) -> None:
    for root in ("/v1", "/openai"):
        ok, detail = examine_list(tmp_path, Reply(b"not here", 404), root=root)
        assert ok
        assert "whether it serves 'large' shows with the first question" in detail


def test_a_url_without_its_version_is_told_from_one_without_a_list(tmp_path: Path) -> None:
    class VersionRoot(BaseHTTPRequestHandler):
        """Lists its models under /v1 alone."""

        def do_GET(self) -> None:
            """Any path."""
            body = b'{"data": [{"id": "large"}]}'
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """To nobody."""

    with ThreadingHTTPServer(("127.0.0.1", 0), VersionRoot) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        configured = Models(proposer=ProposerModel(url=url, model="large"))
        finding = examine_models(tmp_path, configured)
        server.shutdown()
    assert finding == (
        False,
        f"models.proposer: {url} lists no models, and {url}/v1 does; set that URL",
    )


def test_users_that_a_model_is_to_play_need_its_url(tmp_path: Path) -> None:
    with App(Settings(home=tmp_path, improve=Improve(users="model"))) as app:
        ok, detail = models(app)
    assert not ok
    assert "models.user.url names none" in detail
    assert 'set improve.users to "script"' in detail


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
