"""An upstream that the gateway refuses is refused by `config check` too, with the same words."""

from pathlib import Path

import pytest

from tests.daemon.conftest import Kintsugi

REFUSED = (
    "http://127.0.0.1:8000",
    "http://127.0.0.1:8000/v1/chat",
    "https://user:canary@127.0.0.1/v1",
    "http://127.0.0.1:8000/v1?key=canary",
    "http://127.0.0.1:8000/v1#v1",
    "ftp://127.0.0.1/v1",
    "127.0.0.1:8000/v1",
    "http:///v1",
    "http://:8000/v1",
    "http://127.0.0.1:canary/v1",
    "http://127.0.0.1:0/v1",
    "http://127.0.0.1:70000/v1",
    "http://[::1/v1",
    "http://127.0.0.1:8000/a b/v1",
    "http://127.0.0.1:8000/é/v1",
)
TAKEN = ("http://127.0.0.1:8000/v1", "https://engine.example/openai/v1/", "http://[::1]:8000/v1")


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_that_the_gateway_refuses_is_refused_by_the_check(
    url: str, home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_UPSTREAMS", f'[{{"url": "{url}"}}]')
    checked, started = kintsugi("config", "check"), kintsugi("gateway", "--port", "0")
    assert (checked.code, checked.err) == (2, started.err)
    assert started.code == 2
    assert "upstream" in checked.err
    assert "canary" not in checked.err


@pytest.mark.parametrize("url", TAKEN)
def test_a_url_that_the_gateway_takes_passes_the_check(
    url: str, home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_UPSTREAMS", f'[{{"url": "{url}"}}]')
    assert kintsugi("config", "check").code == 0


def test_a_key_that_the_gateway_refuses_is_refused_by_the_check(
    home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = '[{"url": "http://127.0.0.1:8000/v1", "api_key_file": "/nowhere"}]'
    monkeypatch.setenv("KINTSUGI_UPSTREAMS", missing)
    result = kintsugi("config", "check")
    assert result.code == 2
    assert "/nowhere, which cannot be read" in result.err
