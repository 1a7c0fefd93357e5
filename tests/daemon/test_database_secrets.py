"""Passwords of databases are printed by no command, wherever a URL holds them."""

import logging
import socket
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import URL

from events.privacy.database_url import (
    hide_secrets,
    parse_database_url,
    render_database_url,
    render_name,
)
from tests.daemon.conftest import Kintsugi
from tests.daemon.gateway.program import running

MARKS = ("canary1", "canary2", "canary3", "canary4", "canary5")


def url_with_secrets(port: int, name: str) -> str:
    """A URL of a server that does not run, with a secret at each place that may hold one."""
    return (
        f"postgresql://daemon:canary1@127.0.0.1:{port}/{name}?password=canary2"
        "&sslpassword=canary3&passfile=/canary4&options=-csome.thing%3Dcanary5"
    )


UNREADABLE = (
    "postgresql://daemon:canary1/x@127.0.0.1:1/tables",
    "postgresql://daemon:x@127.0.0.1:canary1/tables",
    "nosql://daemon:canary1@127.0.0.1/tables?password=canary2",
    "postgresql+odd://daemon:canary1@127.0.0.1/tables",
    "canary1",
    "postgresql://daemon:canary1@127.0.0.1:1/tables?sslmode=odd&password=canary2",
    "postgresql://daemon:canary1@127.0.0.1:1/tables?nothing=canary2",
)

COMMANDS = (
    ("config", "show"),
    ("config", "show", "--origin"),
    ("config", "check"),
    ("status",),
    ("doctor",),
    ("db", "upgrade"),
    ("db", "check"),
    ("rollouts", "ls"),
    ("rebuild",),
    ("erase", "--person", "rosa", "--yes"),
    ("log", "verify"),
)


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def assert_hidden(*texts: str) -> None:
    """Check that no text holds a secret."""
    for text in texts:
        for mark in MARKS:
            assert mark not in text, text


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_that_cannot_be_reached_is_named_without_its_secrets(
    command: tuple[str, ...],
    home: Path,
    kintsugi: Kintsugi,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = unused_port()
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("KINTSUGI_DATABASE_URL", url_with_secrets(port, "tables"))
    monkeypatch.setenv("KINTSUGI_PRIVACY__KEYS_URL", url_with_secrets(port, "keys"))
    for flags in ((), ("--json",)):
        result = kintsugi(*command, *flags)
        assert_hidden(result.out, result.err, caplog.text)


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_that_cannot_be_used_is_refused_without_its_secrets(
    url: str, home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_DATABASE_URL", url)
    for command in (("status",), ("db", "upgrade"), ("doctor",)):
        result = kintsugi("--debug", *command)
        assert result.code != 0
        assert_hidden(result.out, result.err)
    monkeypatch.delenv("KINTSUGI_DATABASE_URL")
    monkeypatch.setenv("KINTSUGI_PRIVACY__KEYS_URL", url)
    result = kintsugi("--debug", "erase", "--person", "rosa", "--yes")
    assert result.code != 0
    assert_hidden(result.out, result.err)


@pytest.mark.parametrize("url", [url_with_secrets(1, "tables"), *UNREADABLE])
def test_databases_that_a_command_names_are_shown_without_their_secrets(
    url: str, imported: Path, kintsugi: Kintsugi
) -> None:
    for command in (("replay", "--into", url), ("diff", url, url)):
        # A name without a scheme is that of a file.
        if "://" in url:
            result = kintsugi("--debug", *command)
            assert result.code != 0
            assert_hidden(result.out, result.err)


def test_a_gateway_names_its_databases_without_their_secrets(tmp_path: Path) -> None:
    port = unused_port()
    variables = {
        "KINTSUGI_DATABASE_URL": url_with_secrets(port, "tables"),
        "KINTSUGI_PRIVACY__KEYS_URL": url_with_secrets(port, "keys"),
    }
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    with running(tmp_path, [f"http://127.0.0.1:{port}/v1"], variables=variables) as program:
        called = httpx2.post(
            f"{program.url}/v1/chat/completions",
            json=body,
            headers={"x-kintsugi-user": "rosa"},
            timeout=60,
        )
        rated = httpx2.post(
            f"{program.url}/v1/feedback",
            json={"session": "s", "score": 1},
            headers={"x-kintsugi-user": "rosa"},
            timeout=60,
        )
    assert (called.status_code, rated.status_code) == (503, 503)
    assert_hidden("".join(program.said), called.text, rated.text)
    assert "127.0.0.1" not in rated.text
    assert "127.0.0.1" in "".join(program.said)


SECRETS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=6)


@given(password=SECRETS, option=SECRETS, name=st.sampled_from(["password", "sslpassword", "x"]))
def test_what_is_shown_of_a_url_is_the_same_whatever_its_secrets_are(
    password: str, option: str, name: str
) -> None:
    url = URL.create("postgresql", "daemon", password, "db", 5432, "tables", query={name: option})
    read = parse_database_url(url.render_as_string(hide_password=False))
    shown = f"postgresql://daemon:***@db:5432/tables?{name}=***"
    assert render_database_url(read) == shown
    for secret in (password, option, quote(password), quote(option)):
        assert hide_secrets(f"«{secret}»", read) == "«***»"


@given(SECRETS)
def test_a_connection_string_for_the_name_of_a_database_is_a_secret(password: str) -> None:
    inner = (f"password={password}", f"postgresql://daemon:{password}@db/tables")
    for text in (f"password={password} dbname=tables", *inner):
        read = URL.create("postgresql", host="db", query={"dbname": text})
        assert render_database_url(read) == "postgresql://db?dbname=***"
        assert hide_secrets(f"«{text}»", read) == "«***»"
    named = URL.create("postgresql", host="db", database=inner[0])
    assert render_database_url(named) == "postgresql://db/***"
    assert hide_secrets(f"«{inner[0]}»", named) == "«***»"


def test_a_password_with_an_at_sign_is_not_shown_as_a_host() -> None:
    text = "postgresql://daemon:pass@word@db/tables"
    with pytest.raises(ValueError, match="percent-encode") as refusal:
        parse_database_url(text)
    assert "word@" not in str(refusal.value)
    assert render_name(text) == "***"


def test_what_is_no_secret_of_a_url_is_shown() -> None:
    text = "postgresql://daemon@db/tables?sslmode=verify-full&host=a&host=b"
    assert render_database_url(parse_database_url(text)) == text
    assert render_database_url(parse_database_url("sqlite:////a/b.db")) == "sqlite:////a/b.db"
    with pytest.raises(ValueError, match="cannot be read as a URL"):
        parse_database_url("nothing")
