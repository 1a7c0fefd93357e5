"""What a hostile client can reach, hold up or make fail: real bytes against a real process, and an
engine that keeps what reaches it."""

import gzip
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import pytest

from producers.gateway.privacy.keys import hash_key, mint_key
from tests.daemon.gateway.program import Program, running
from tests.daemon.gateway.recording_upstream import RecordingUpstream, recording_upstream

pytestmark = pytest.mark.processes

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": HELLO, "max_tokens": 2}
PATIENCE = 1.0
"""Seconds that this gateway gives a client."""
MAX_BODY = 100_000

TOML = f"[gateway]\nclient_seconds = {PATIENCE}\nmax_body_bytes = {MAX_BODY}\n"


@pytest.fixture(scope="module")
def engine() -> Iterator[RecordingUpstream]:
    """The engine of this module's gateways."""
    with recording_upstream() as found:
        yield found


@pytest.fixture
def upstream(engine: RecordingUpstream) -> RecordingUpstream:
    """The same, of which nothing was asked yet."""
    engine.received.clear()
    engine.lines.clear()
    return engine


@pytest.fixture(scope="module")
def program(
    engine: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """A gateway without keys that has little patience."""
    with running(tmp_path_factory.mktemp("gateway") / "home", [engine.url], TOML) as found:
        yield found
        assert httpx2.post(f"{found.url}/v1/chat/completions", json=CHAT).status_code == 200
        assert not any("Traceback" in line for line in found.said), "".join(found.said)


@pytest.fixture(scope="module")
def keyed(
    engine: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Program, str]]:
    """A gateway with a key for everything, and the key."""
    key = mint_key()
    toml = (
        f'{TOML}\n[[gateway.keys]]\nname = "a"\nsha256 = "{hash_key(key)}"\n'
        'scopes = ["call", "feedback", "trusted"]\n'
    )
    home = tmp_path_factory.mktemp("keyed") / "home"
    with running(home, [engine.url], toml) as found:
        yield found, key


def told(program: Program, *pieces: bytes) -> bytes:
    """All that a connection answers until it is closed."""
    answered = bytearray()
    with program.connect() as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in pieces:
                connection.sendall(piece)
        with suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                answered += piece
    return bytes(answered)


def statuses(answered: bytes) -> list[int]:
    """The status of every answer in these bytes."""
    found = []
    for place in answered.split(b"HTTP/1.1 ")[1:]:
        found.append(int(place[:3]))
    return found


def request(line: str, body: bytes = b"", *fields: str) -> bytes:
    """A request that is the last one of its connection."""
    head = [line, "host: 127.0.0.1", "connection: close", *fields]
    if body:
        head.append(f"content-length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


ADMIN = (
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/sleep",
    "/wake_up",
    "/collective_rpc",
    "/reset_prefix_cache",
    "/tokenize",
    "/detokenize",
    "/v1/tokenize",
    "/pause",
    "/resume",
    "/update_weights",
    "/init_weight_transfer_engine",
    "/scale_elastic_ep",
    "/invocations",
    "/inference/v1/generate",
    "/pooling",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/audio/transcriptions",
    "/server_info",
    "/version",
    "/health",
    "/ping",
    "/docs",
    "/v1/metrics",
)


def disguises(path: str) -> Iterator[str]:
    """Ways to write a path that somebody may read as it."""
    bare = path.lstrip("/")
    yield path
    yield f"/{path}"
    yield f"{path}/"
    yield f"{path}?x=/v1/models"
    yield f"{path}#/v1/models"
    yield f"/v1/models/..{path}"
    yield f"/v1/models/../..{path}"
    yield f"/v1//..{path}"
    yield f"//v1/..{path}"
    yield f"/v1/models%2f..%2f..%2f{bare}"
    yield f"/v1/models/%2e%2e/%2e%2e/{bare}"
    yield f"/v1/%252e%252e/{bare}"
    yield f"/v1/chat/completions/..;{path}"
    yield f"/v1/chat/completions/../../../{bare}"
    yield f"/v1/models\\..\\..\\{bare}"
    yield f"/r/session/x{path}"
    yield f"/r/session/x/v1/..{path}"
    yield f"/r/session/x/v1/chat/completions/..{path}"
    yield f"/r/session/..{path}"
    yield f"/r{path}"
    yield f"/r/session/{bare}/v1"
    yield f"/v1/sessions/..{path}"
    yield f"/v1/sessions/../../{bare}/end"
    yield f"/v1/models%00{path}"
    yield f"/%76%31/{bare}"
    yield f"http://127.0.0.1{path}"
    yield f"http://127.0.0.1/v1/models/..{path}"
    yield f"http://user@127.0.0.1:80{path}"
    yield f"//127.0.0.1{path}"


@pytest.mark.parametrize("path", ADMIN)
@pytest.mark.parametrize("gate", ["open", "keyed"])
def test_an_engines_own_commands_cannot_be_reached(
    path: str, gate: str, program: Program, keyed: tuple[Program, str], upstream: RecordingUpstream
) -> None:
    asked, key = keyed if gate == "keyed" else (program, "none")
    body = json.dumps({"lora_name": "x", "lora_path": "/x", "messages": HELLO}).encode()
    bearer = f"authorization: Bearer {key}"
    for disguise in disguises(path):
        for method in ("POST", "GET"):
            sent = body if method == "POST" else b""
            answered = told(asked, request(f"{method} {disguise} HTTP/1.1", sent, bearer))
            (status,) = statuses(answered)
            assert status in (200, 307, 400, 404, 405), (method, disguise)
            assert status != 307
    assert "load_lora" not in upstream.received.decode("latin-1").partition("\r\n\r\n")[0]
    bare = path.removeprefix("/v1").lstrip("/")
    for line in upstream.lines:
        assert line in ("GET /v1/models", "POST /v1/chat/completions"), line
        assert bare not in line


SMUGGLED = b"POST /v1/load_lora_adapter HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
BODY = json.dumps(CHAT).encode()


def chunked(*chunks: bytes) -> bytes:
    """A body in chunks."""
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def head(*fields: str, line: str = "POST /v1/chat/completions HTTP/1.1") -> bytes:
    """A head with these fields alone."""
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    "sent",
    [
        head("host: x", "content-length: 4", "transfer-encoding: chunked") + chunked(BODY),
        head("host: 127.0.0.1", "content-length: 4", "transfer-encoding: chunked")
        + chunked(BODY)
        + SMUGGLED,
        head("host: 127.0.0.1", "transfer-encoding: chunked", "content-length: 0") + SMUGGLED,
        head("host: 127.0.0.1", "content-length: 0", "content-length: 90") + SMUGGLED,
        head("host: 127.0.0.1", "content-length: 0, 90") + SMUGGLED,
        head("host: 127.0.0.1", "content-length: +5") + SMUGGLED,
        head("host: 127.0.0.1", "content-length: -1") + SMUGGLED,
        head("host: 127.0.0.1", "content-length: 0x10") + SMUGGLED,
        head("host: 127.0.0.1", "content-length : 0") + SMUGGLED,
        head("host: 127.0.0.1", "transfer-encoding: xchunked") + SMUGGLED,
        head("host: 127.0.0.1", "transfer-encoding: chunked, identity") + SMUGGLED,
        head("host: 127.0.0.1", "transfer-encoding: identity, chunked") + chunked(BODY),
        head("host: 127.0.0.1", "transfer-encoding:\x0bchunked") + SMUGGLED,
        head("host: 127.0.0.1", "transfer-encoding: chunked") + b"-1\r\n" + SMUGGLED,
        head("host: 127.0.0.1", "transfer-encoding: chunked") + b"fffffffffffffffff\r\n" + SMUGGLED,
        head("host: 127.0.0.1", "transfer-encoding: chunked") + b"zz\r\n" + SMUGGLED,
        head("host: 127.0.0.1", " folded: x", "connection: close") + SMUGGLED,
        head("host: 127.0.0.1", "x: a\rb", "connection: close") + SMUGGLED,
        head("host: 127.0.0.1", "x: a\x00b", "connection: close") + SMUGGLED,
        head("host: 127.0.0.1", "host: other", "connection: close") + SMUGGLED,
        head("connection: close") + SMUGGLED,
        head(line="POST /v1/chat/completions HTTP/2.0") + SMUGGLED,
        head(line="POST /v1/chat/completions") + SMUGGLED,
        head("host: 127.0.0.1", line="CONNECT 127.0.0.1:1 HTTP/1.1") + SMUGGLED,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SMUGGLED,
        b"\x00" * 1000,
    ],
)
def test_doubtful_framing_reaches_no_engine(
    sent: bytes, program: Program, upstream: RecordingUpstream
) -> None:
    answered = told(program, sent)
    assert all(status in (400, 403, 404, 405, 408, 431, 501) for status in statuses(answered))
    assert statuses(answered), "nothing was said"
    assert upstream.asked <= {"POST /v1/chat/completions"}
    assert b"load_lora" not in upstream.received


def test_what_is_whole_in_chunks_is_answered(program: Program, upstream: RecordingUpstream) -> None:
    fields = ("host: localhost", "transfer-encoding: chunked", "connection: close")
    answered = told(program, head(*fields) + chunked(BODY[:7], BODY[7:]))
    assert statuses(answered) == [200]
    assert upstream.asked == {"POST /v1/chat/completions"}


def test_what_a_request_holds_makes_no_other_request(
    program: Program, upstream: RecordingUpstream
) -> None:
    evil = "x\r\n\r\nPOST /v1/load_lora_adapter HTTP/1.1\r\nhost: x\r\n\r\n"
    body = {"model": evil, "messages": [{"role": evil, "content": evil, "name": evil}]}
    answer = httpx2.post(f"{program.url}/v1/chat/completions", json=body | {evil: evil})
    assert answer.status_code == 200
    assert "\r" not in answer.headers["x-kintsugi-adapter"]
    assert upstream.asked == {"POST /v1/chat/completions"}
    for name in ("session", "user", "task", "purpose"):
        sent = f"x-kintsugi-{name}: a\x7fb"
        raw = request("POST /v1/chat/completions HTTP/1.1", BODY, sent)
        assert statuses(told(program, raw)) == [400]
    split = request("POST /r/session/a%0d%0ax:%20y/v1/chat/completions HTTP/1.1", BODY)
    assert statuses(told(program, split)) == [400]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example@127.0.0.1.evil",
        "192.0.2.1",
        "0.0.0.0",
        "[::2]",
        "[",
        "",
    ],
)
def test_another_name_than_this_machines_is_a_trap(
    host: str, program: Program, upstream: RecordingUpstream
) -> None:
    for line in (
        "POST /v1/chat/completions",
        "POST /v1/feedback",
        "GET /v1/models",
        "GET /metrics",
    ):
        body = BODY if line.startswith("POST") else b""
        fields = [f"host: {host}", "connection: close", f"content-length: {len(body)}"]
        answered = told(program, head(*fields, line=f"{line} HTTP/1.1") + body)
        assert statuses(answered) == [403], answered
        assert b"kintsugi key NAME" in answered
    assert upstream.asked == set()


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1.evil.example", "null"]
)
def test_a_page_of_another_site_is_not_answered(
    origin: str, program: Program, upstream: RecordingUpstream
) -> None:
    # As a browser sends it without asking first: a form, or fetch with text/plain.
    headers = {"origin": origin, "content-type": "text/plain"}
    answer = httpx2.post(f"{program.url}/v1/chat/completions", content=BODY, headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert upstream.asked == set()


def test_this_machine_and_its_own_pages_are_answered(
    program: Program, keyed: tuple[Program, str]
) -> None:
    for host in (
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1",
        "127.8.8.8:80",
        "[::1]:8080",
        "localhost.",
    ):
        fields = [f"host: {host}", "connection: close", f"content-length: {len(BODY)}"]
        assert statuses(told(program, head(*fields) + BODY)) == [200]
    headers = {"origin": "http://localhost:3000"}
    assert httpx2.get(f"{program.url}/v1/models", headers=headers).status_code == 200
    guarded, key = keyed
    for host in ("gateway.example", "["):
        fields = [f"host: {host}", "connection: close", f"authorization: Bearer {key}"]
        fields += [f"content-length: {len(BODY)}", "origin: https://app.example"]
        assert statuses(told(guarded, head(*fields) + BODY)) == [200]
        without = [f"host: {host}", "connection: close", "content-length: 0"]
        assert statuses(told(guarded, head(*without))) == [401]


def error(answered: bytes) -> dict[str, Any]:
    """The error in OpenAI's shape that an answer is."""
    found: dict[str, Any] = json.loads(answered.partition(b"\r\n\r\n")[2])["error"]
    assert found["message"]
    return found


def test_limits_of_heads_and_bodies_are_said(program: Program) -> None:
    for long in (
        request("GET /v1/models HTTP/1.1", b"", f"x: {'y' * 70_000}"),
        request("GET /v1/models HTTP/1.1", b"", *[f"x{n}: y" for n in range(10_000)]),
        request(f"GET /v1/models?{'y' * 70_000} HTTP/1.1"),
        request(f"GET /{'y' * 300_000} HTTP/1.1"),
        b"G" * 300_000,
    ):
        answered = told(program, long)
        assert statuses(answered) == [431], answered[:200]
        error(answered)
    line = "POST /v1/chat/completions HTTP/1.1"
    for path in ("/v1/chat/completions", "/v1/messages/count_tokens"):
        large = request(f"POST {path} HTTP/1.1", b"x" * (MAX_BODY + 1))
        assert statuses(told(program, large)) == [413]
    assert statuses(told(program, request("POST /v1/feedback HTTP/1.1", b"x" * (2 << 20)))) == [413]
    promised = head("host: 127.0.0.1", "content-length: 99999999999", "connection: close")
    assert statuses(told(program, promised, b"x" * (2 * MAX_BODY))) == [413]
    for coding in ("gzip", "br", "zstd", "deflate", "x-gzip"):
        packed = request(line, gzip.compress(BODY), f"content-encoding: {coding}")
        answered = told(program, packed)
        assert statuses(answered) == [415]
        assert coding in error(answered)["message"]
    assert statuses(told(program, request(line, BODY, "content-encoding: identity"))) == [200]


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"", []),
        (b"POST /v1/chat", [408]),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n", [408]),
        (head("host: localhost", "content-length: 50") + b"{", [408]),
        (head("host: localhost", "transfer-encoding: chunked") + b"5\r\n{", [408]),
        (head("host: localhost", "content-length: 50", line="POST /nowhere HTTP/1.1"), [404]),
    ],
)
def test_who_never_finishes_is_not_waited_for(
    begun: bytes, status: list[int], program: Program
) -> None:
    assert statuses(told(program, begun)) == status


@pytest.mark.parametrize(
    ("begun", "drop"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n", b"x: y\r\n"),
        (head("host: localhost", "content-length: 99999"), b"x"),
        (head("host: localhost", "transfer-encoding: chunked"), b"1\r\nx\r\n"),
        (head("host: localhost", "content-length: 999999999") + b"x" * 2 * MAX_BODY, b"x" * 999),
        (head("host: localhost", "content-length: 99999", line="GET /livez HTTP/1.1"), b"x"),
    ],
)
def test_who_drips_is_not_waited_for(begun: bytes, drop: bytes, program: Program) -> None:
    with program.connect() as connection:
        connection.sendall(begun)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip(connection, drop)


def drip(connection: socket.socket, drop: bytes) -> NoReturn:
    """Send a little, again and again."""
    while True:
        connection.sendall(drop)
        threading.Event().wait(0.05)


def test_many_who_never_finish_hold_nobody_else_up(program: Program) -> None:
    slow = [program.connect() for _ in range(100)]
    try:
        for connection in slow:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: l")
        answer = httpx2.post(f"{program.url}/v1/chat/completions", json=CHAT, timeout=60)
        assert answer.status_code == 200
        for connection in slow:
            # On a busy machine its patience may end before it has read what was sent: then the
            # system ends the connection.
            with suppress(ConnectionResetError):
                while connection.recv(4096):
                    pass
    finally:
        for connection in slow:
            connection.close()


def test_a_connection_serves_as_long_as_it_is_used(program: Program) -> None:
    with program.connect() as connection:
        whole = head("host: localhost", f"content-length: {len(BODY)}") + BODY
        for _ in range(3):
            connection.sendall(whole)
            answered = b""
            while b"Hi" not in answered:
                answered += connection.recv(65536)
            threading.Event().wait(PATIENCE)


def test_whoever_reads_nothing_is_gone(tmp_path: Path) -> None:
    with (
        recording_upstream() as engine,
        running(tmp_path / "home", [engine.url], TOML) as program,
        socket.socket() as connection,
    ):
        engine.until, engine.padding = threading.Event(), 100_000
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", program.port))
        body = json.dumps(CHAT | {"stream": True}).encode()
        connection.sendall(head("host: localhost", f"content-length: {len(body)}") + body)
        in_flight = "kintsugi_gateway_calls_in_flight 1.0"
        for expected in (True, False):
            while (in_flight in httpx2.get(f"{program.url}/metrics").text) != expected:
                threading.Event().wait(0.1)
        engine.until.set()
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0
