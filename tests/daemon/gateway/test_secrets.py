"""Keys go where they belong and nowhere else: every byte that engines get, that is printed and that
is stored is looked through."""

import hmac
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zstandard

from daemon.config.settings import ConfigurationError
from daemon.roles.gateway import address_of, check_reach
from producers.gateway.privacy.keys import ClientKey, ClientKeys, Scope, hash_key, mint_key
from tests.daemon.commands import Result, run_here
from tests.daemon.gateway.conftest import fronting
from tests.daemon.gateway.program import Program, running
from tests.daemon.gateway.recording_upstream import RecordingUpstream, recording_upstream

pytestmark = pytest.mark.processes

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": HELLO, "max_tokens": 2}
ZSTD = b"\x28\xb5\x2f\xfd"


@pytest.fixture
def upstream() -> Iterator[RecordingUpstream]:
    """An engine that keeps what it gets."""
    with recording_upstream() as found:
        yield found


@pytest.fixture
def other() -> Iterator[RecordingUpstream]:
    """Another one."""
    with recording_upstream() as found:
        yield found


def held(home: Path) -> bytes:
    """Every byte below a home, as it lies there and unpacked."""
    found = bytearray()
    for path in sorted(path for path in home.rglob("*") if path.is_file()):
        found += path.read_bytes()
    with closing(sqlite3.connect(home / "log.db")) as log:
        tables = log.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for row in log.execute(f'SELECT * FROM "{table}"'):
                for value in row:
                    found += unpacked(value) if isinstance(value, bytes) else repr(value).encode()
    return bytes(found)


def unpacked(value: bytes) -> bytes:
    """A value, and what is compressed in it."""
    found, at = value, value.find(ZSTD)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            found += zstandard.ZstdDecompressor().decompressobj().decompress(value[at:])
        at = value.find(ZSTD, at + 1)
    return found


def stopped(program: Program) -> str:
    """What a gateway said until its end."""
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(60) == 0
    return "".join(program.said)


def busy_client(program: Program, headers: dict[str, str]) -> str:
    """Every route and every kind of trouble, with these headers; all that was answered."""
    said: list[str] = []
    with httpx2.Client(base_url=program.url, headers=headers, timeout=60) as client:
        streamed = CHAT | {"stream": True}
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/chat/completions", streamed),
            ("/v1/completions", {"prompt": "Hello", "max_tokens": 2}),
            ("/v1/messages", CHAT),
            ("/v1/messages/count_tokens", CHAT),
            ("/r/session/path-session/v1/chat/completions", CHAT),
            ("/v1/feedback", {"session": "s", "score": 1, "comment": "good"}),
            ("/v1/feedback", {"session": "s", "nonsense": 1}),
            ("/v1/sessions/s/end", {}),
            ("/v1/chat/completions", []),
            ("/nowhere", {}),
            ("/livez", {}),
        ):
            for extra in ({}, {"idempotency-key": f"again {path}".replace(" ", "-")}):
                answer = client.post(path, json=body, headers=extra)
                said += [answer.text, repr(answer.headers.raw)]
        for path in ("/v1/models", "/metrics", "/readyz", "/openapi.json"):
            answer = client.get(path)
            said += [answer.text, repr(answer.headers.raw)]
    sent = headers | {"connection": "close"}
    fields = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    for head in (
        f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n",
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}bad header\r\n\r\n",
        f"POST /v1/chat/completions HTTP/9.9\r\nhost: 127.0.0.1\r\n{fields}\r\n",
        f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n{fields}x: {'y' * 70_000}\r\n\r\n",
    ):
        with program.connect() as connection:
            connection.sendall(head.encode())
            with suppress(ConnectionResetError):
                while piece := connection.recv(65536):
                    said.append(piece.decode("latin-1"))
    return "".join(said)


def canaries(key: str) -> dict[str, str]:
    """A header of each kind that carries secrets, and the word that gives it away."""
    return {
        "authorization": f"Bearer {key}",
        "cookie": "session=canary-cookie",
        "proxy-authorization": "Basic canary-proxy",
        "api-key": "canary-azure",
        "x-goog-api-key": "canary-google",
        "openai-organization": "canary-organization",
        "x-forwarded-for": "canary-forwarded",
        "forwarded": "for=canary-forwarded",
        "referer": "http://localhost/canary-referer",
        "user-agent": "canary-agent",
    }


@pytest.mark.parametrize("keyed", [True, False])
def test_a_clients_key_ends_here(keyed: bool, upstream: RecordingUpstream, tmp_path: Path) -> None:
    key = mint_key() if keyed else "canary-bearer"
    toml = (
        f'[[gateway.keys]]\nname = "agent"\nsha256 = "{hash_key(key)}"\n'
        'scopes = ["call", "feedback"]\n'
    )
    home = tmp_path / "home"
    arguments = ["--debug"]
    with running(home, [upstream.url], toml if keyed else "", None, arguments) as program:
        answered = busy_client(program, canaries(key))
        answered += busy_client(program, canaries("canary-wrong"))
        answered += busy_client(program, canaries("canary-first~canary-second"))
        answered += busy_client(program, {"x-api-key": key, "cookie": "canary-cookie"})
        printed = stopped(program)
    assert "POST /v1/chat/completions" in upstream.asked
    (home / "kintsugi.toml").unlink(missing_ok=True)
    for found in (upstream.received, printed.encode(), held(home), answered.encode()):
        assert b"canary" not in found
        assert key.encode() not in found


def test_the_search_for_keys_would_find_them(upstream: RecordingUpstream, tmp_path: Path) -> None:
    planted = {"messages": [{"role": "user", "content": "planted-word " * 50}]}
    with running(tmp_path / "home", [upstream.url]) as program:
        headers = {"x-kintsugi-session": "planted-name", "idempotency-key": "planted-key"}
        httpx2.post(f"{program.url}/v1/chat/completions", json=planted, headers=headers)
        stopped(program)
    found = held(tmp_path / "home")
    assert b"planted-word" in upstream.received
    assert b"planted-word" in found
    assert b"planted-name" in found


def test_an_engines_key_goes_to_that_engine_alone(
    upstream: RecordingUpstream, other: RecordingUpstream, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("canary-of-other\n")
    config = tmp_path / "engines.toml"
    config.write_text(
        f'[[upstreams]]\nurl = "{upstream.url}"\napi_key = "canary-of-one"\n'
        f'[[upstreams]]\nurl = "{other.url}"\napi_key_file = "{tmp_path / "secret"}"\n'
    )
    home = tmp_path / "home"
    variables = {"KINTSUGI_CONFIG": str(config)}
    with running(home, variables=variables, arguments=["--debug"]) as program:
        answered = ""
        with httpx2.Client(base_url=program.url, timeout=60) as client:
            for number in range(16):
                named = {"x-kintsugi-session": f"s{number}"}
                answered += client.post("/v1/chat/completions", json=CHAT, headers=named).text
        for one in (upstream, other):
            assert "POST /v1/chat/completions" in one.asked
        upstream.redirect = f"{other.url}/chat/completions"
        other.redirect = f"{upstream.url}/chat/completions"
        for url in (upstream.url, other.url):
            assert url in httpx2.get(f"{program.url}/metrics").text
        answered += busy_client(program, {})
        printed = stopped(program)
    assert b"canary-of-one" in upstream.received
    assert b"canary-of-other" in other.received
    assert b"canary-of-other" not in upstream.received
    assert b"canary-of-one" not in other.received
    there = {"KINTSUGI_HOME": str(home), **variables}
    for command in (
        ["config", "show"],
        ["config", "show", "--origin", "--json"],
        ["config", "check", "--json"],
        ["doctor", "--json"],
        ["status", "--json"],
        ["spool", "status"],
        ["log", "cat", "rollouts", "--tokens"],
        ["doctor", "--upstream", upstream.url],
    ):
        done = run_here(command, there)
        printed += done.out + done.err
    assert "canary-of" not in printed
    assert "canary" not in answered
    assert b"canary" not in held(home)


def serve(tmp_path: Path, toml: str, *arguments: str, debug: bool = True) -> Result:
    """Begin a gateway in this process that should not even begin."""
    config = tmp_path / "kintsugi.toml"
    config.write_text(toml)
    flags = ["--debug"] if debug else []
    variables = {"KINTSUGI_HOME": str(tmp_path / "home"), "KINTSUGI_CONFIG": str(config)}
    return run_here([*flags, "gateway", "--port", "0", *arguments], variables)


URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"canary\ncanary", "no header"),
        (b"canary \xff", "no header"),
        ("folder", "directory"),
    ],
)
def test_a_file_without_a_key_is_said(content: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    done = serve(tmp_path, f'[[upstreams]]\nurl = "{URL}"\napi_key_file = "{path}"\n', debug=False)
    assert done.code == 2
    assert "upstreams[0]" in done.err
    assert reason in done.err
    assert "canary" not in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "toml",
    [
        f'[[upstreams]]\nurl = "{URL}"\napi_key = ["canary"]\n',
        '[[upstreams]]\napi_key = "canary"\n',
        f'[[upstreams]]\nurl = "{URL}"\napi_key = "canary\\ncanary"\n',
        f'[[upstreams]]\nurl = "{URL}"\napi_key = "canary"\napi_key_file = "x"\n',
        f'[upstreams]\nurl = "{URL}"\napi_key = "canary"\n',
        '[[upstreams]]\nurl = "http://user:canary@127.0.0.1:9/v1"\n',
        '[[upstreams]]\nurl = "http://127.0.0.1:9/v1?key=canary/v1"\n',
        f'[[upstreams]]\nurl = "{URL}"\napi_keys = "canary"\n',
    ],
)
def test_a_setting_that_is_wrong_shows_no_key(toml: str, tmp_path: Path) -> None:
    done = serve(tmp_path, toml)
    assert done.code == 2
    assert "upstream" in done.err
    assert "canary" not in done.err
    assert done.err.strip().splitlines()[-1].startswith("kintsugi: ")


def test_keys_in_a_variable_are_not_shown(tmp_path: Path) -> None:
    for value in ('[{"url": "x", "api_key": "canary"}]', '[{"api_key": "canary"', "canary"):
        variables = {"KINTSUGI_UPSTREAMS": value, "KINTSUGI_HOME": str(tmp_path / "home")}
        done = run_here(["--debug", "gateway", "--port", "0"], variables)
        assert done.code == 2
        assert "canary" not in done.err


def test_every_hash_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [mint_key() for _ in range(5)]
    ring = ClientKeys([ClientKey(f"k{n}", hash_key(k), frozenset()) for n, k in enumerate(keys)])
    compared: list[bool] = []
    real = hmac.compare_digest

    def counting(one: Any, two: Any) -> bool:
        compared.append(real(one, two))
        return compared[-1]

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for token in (*keys, "wrong", "", "é", f"{keys[0]}x"):
        compared.clear()
        found = ring.client(f"Bearer {token}")
        assert len(compared) == len(keys)
        assert (found is not None) == any(compared) == (token in keys)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "::ffff:0.0.0.0", ""])
def test_beyond_this_machine_it_needs_a_key(host: str, tmp_path: Path) -> None:
    done = serve(tmp_path, "", "--upstream", URL, "--host", host, debug=False)
    assert done.code == 2
    assert "gateway.host is" in done.err
    toml = f'[[gateway.keys]]\nname = "a"\nsha256 = "{hash_key("k")}"\n'
    if host == "0.0.0.0":
        with running(tmp_path / "keyed", [URL], toml, None, ["--host", host]) as program:
            answer = httpx2.get(f"{program.url}/v1/models")
            assert answer.status_code == 401


def test_a_name_is_what_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert address_of("localhost") in ("127.0.0.1", "::1")
    check_reach("localhost", address_of("localhost"), keys=False)
    with pytest.raises(ConfigurationError, match="no address"):
        address_of("nowhere.invalid")

    def elsewhere(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", elsewhere)
    address = address_of("localhost")
    assert address == "192.0.2.7"
    with pytest.raises(ConfigurationError, match=r"localhost \(192\.0\.2\.7\), which others"):
        check_reach("localhost", address, keys=False)
    check_reach("localhost", address, keys=True)


def test_each_scope_opens_its_own_routes_and_each_key_has_its_own_rate(
    upstream: RecordingUpstream, tmp_path: Path
) -> None:
    keys = {name: mint_key() for name in ("call", "feedback", "trusted", "second")}
    scopes: dict[str, frozenset[Scope]] = {
        "call": frozenset(("call",)),
        "feedback": frozenset(("feedback",)),
        "trusted": frozenset(("trusted",)),
        "second": frozenset(("feedback",)),
    }
    ring = [ClientKey(name, hash_key(key), scopes[name]) for name, key in keys.items()]
    said = {"session": "s", "score": 1}
    url = upstream.url.removesuffix("/v1")
    with fronting(tmp_path, [url], ring, proven=False, feedback_per_minute=2) as front:

        def status(key: str, method: str, path: str, body: Any = None) -> int:
            headers = {"authorization": f"Bearer {key}"}
            asked = f"{front.url}{path}"
            return httpx2.request(method, asked, json=body, headers=headers).status_code

        for key, calls, feedback in (("call", 200, 403), ("feedback", 403, 200)):
            assert status(keys[key], "POST", "/v1/chat/completions", CHAT) == calls
            assert status(keys[key], "GET", "/v1/models") == calls
            assert status(keys[key], "POST", "/v1/sessions/s/end") == calls
            assert status(keys[key], "POST", "/v1/feedback", said) == feedback
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/feedback", said)):
            assert status(keys["trusted"], "POST", path, body) == 403
            assert status("wrong", "POST", path, body) == 401
        rest = [status(keys["feedback"], "POST", "/v1/feedback", said) for _ in range(2)]
        assert rest == [200, 429]
        assert status(keys["second"], "POST", "/v1/feedback", said) == 200
