"""Who may ask the embedded engine, and what a large request costs the others: a real server over
real sockets, asked as browsers, proxies and careless programs ask."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from daemon.engine.adapters import Adapters
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.server import MAX_ADMIN_BODY, Server
from daemon.engine.wire import MAX_MESSAGES
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.listening import at_a_port

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
HELLO = {"messages": [{"role": "user", "content": "Hello, I am Rosa."}], "max_tokens": 2}


def asked(
    url: str, path: str, *fields: str, body: bytes = b"", host: str = "", method: str = ""
) -> tuple[int, bytes]:
    """Status and body of a request of these very bytes; no client mends what is wrong with it."""
    address = httpx2.URL(url)
    line = f"{method or ('POST' if body else 'GET')} {path} HTTP/1.1"
    head = [line, f"host: {host or f'127.0.0.1:{address.port}'}", "connection: close", *fields]
    head += [f"content-length: {len(body)}"] if body else []
    with socket.create_connection(("127.0.0.1", address.port or 80), timeout=60) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    start, _, said = answer.partition(b"\r\n\r\n")
    return int(start.split(b" ")[1]), said


def loading(adapter: Path, name: str = "one") -> bytes:
    return json.dumps({"lora_name": name, "lora_path": str(adapter)}).encode()


JSON = "content-type: application/json"

FOREIGN = {
    "another site": (["origin: https://evil.example"], ""),
    "no site": (["origin: null"], ""),
    "a site that looks like this machine": (["origin: http://127.0.0.1.evil.example"], ""),
    "a name that was bent to this machine": (["origin: http://evil.example:8000"], "evil.example"),
    "a bent name without an origin": ([], "evil.example:8000"),
    "a bent name like this machine's": ([], "localhost.evil.example"),
    "every address": ([], "0.0.0.0:8000"),
    "an address of the network": ([], "[2001:db8::1]:8000"),
    "a browser that says so": (["sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"], ""),
}


@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize("path", [LOAD, UNLOAD, "/v1/chat/completions", "/v1/models", "/health"])
def test_no_page_of_another_site_is_answered(
    case: str, path: str, live: Live, adapter: Path
) -> None:
    fields, host = FOREIGN[case]
    bodies = {LOAD: loading(adapter), UNLOAD: b'{"lora_name": "one"}'}
    body = bodies.get(path, json.dumps(HELLO).encode() if path.startswith("/v1/chat") else b"")
    status, said = asked(live.url, path, JSON, *fields, body=body, host=host)
    assert status == 403, said
    error = json.loads(said)["error"]
    assert (error["type"], error["code"]) == ("PermissionDeniedError", 403)
    assert live.server.adapters.entries == {}


@pytest.mark.parametrize(
    "kind", ["content-type: text/plain", "content-type: application/x-www-form-urlencoded", "x: y"]
)
def test_adapters_are_loaded_by_json_alone_which_no_page_sends_unasked(
    kind: str, live: Live, adapter: Path
) -> None:
    status, said = asked(live.url, LOAD, kind, body=loading(adapter))
    assert (status, live.server.adapters.entries) == (403, {}), said
    assert b"application/json" in said


@pytest.mark.parametrize(
    ("fields", "host"),
    [
        ([], ""),
        ([], "localhost:8000"),
        ([], "[::1]:8000"),
        (["origin: http://localhost:3000"], ""),
        (["x-forwarded-host: gateway.example", "x-forwarded-for: 10.0.0.9"], ""),
        (["sec-fetch-site: none", "sec-fetch-mode: navigate"], ""),
    ],
)
def test_this_machine_and_a_proxy_on_it_are_answered(
    fields: list[str], host: str, live: Live, adapter: Path
) -> None:
    kind = "Content-Type: application/json; charset=utf-8"
    assert asked(live.url, LOAD, kind, *fields, body=loading(adapter), host=host)[0] == 200
    assert asked(live.url, UNLOAD, kind, *fields, body=b'{"lora_name": "one"}', host=host)[0] == 200
    assert asked(live.url, "/v1/models", *fields, host=host)[0] == 200


@contextmanager
def open_to_all(base: Policy, chat: Chat) -> Iterator[Live]:
    """A server that listens beyond its machine: whoever asks names it as he knows it."""
    engine = Engine(base, slots=2)
    server = Server(Adapters(base, "a checkpoint"), chat, engine, local=False)
    with at_a_port(server.app) as url:
        yield Live(server, engine, url)


def test_beyond_its_machine_it_has_any_name_and_still_answers_no_page(
    base: Policy, served_chat: Chat, adapter: Path
) -> None:
    with open_to_all(base, served_chat) as live:
        for host in ("engine:8000", "engine.default.svc.cluster.local", "10.0.0.7:8000"):
            assert asked(live.url, LOAD, JSON, body=loading(adapter), host=host)[0] == 200
            assert asked(live.url, UNLOAD, JSON, body=b'{"lora_name": "one"}', host=host)[0] == 200
        bent = ["origin: http://evil.example:8000"]
        status, _ = asked(live.url, LOAD, JSON, *bent, body=loading(adapter), host="evil.example")
        assert (status, live.server.adapters.entries) == (403, {})


@pytest.mark.parametrize("path", [LOAD, "/v1/chat/completions", "/v1/models"])
def test_beyond_its_machine_a_browser_that_asks_for_another_sites_page_is_refused(
    path: str, base: Policy, served_chat: Chat, adapter: Path
) -> None:
    bodies = {LOAD: loading(adapter), "/v1/models": b""}
    body, host = bodies.get(path, json.dumps(HELLO).encode()), "10.0.0.7:8000"
    with open_to_all(base, served_chat) as live:
        status, said = asked(
            live.url, path, JSON, "sec-fetch-site: cross-site", body=body, host=host
        )
        assert (status, live.server.adapters.entries) == (403, {}), said
        assert json.loads(said)["error"]["type"] == "PermissionDeniedError"
        for fields in ([], ["sec-fetch-site: none"], ["sec-fetch-site: same-origin"]):
            assert asked(live.url, path, JSON, *fields, body=body, host=host)[0] == 200
            asked(live.url, UNLOAD, JSON, body=b'{"lora_name": "one"}', host=host)


@pytest.mark.parametrize(
    ("fields", "status"),
    [(["content-encoding: gzip"], 415), (["transfer-encoding: chunked"], 400)],
)
def test_what_may_be_more_than_it_seems_is_refused(
    fields: list[str], status: int, live: Live
) -> None:
    body = json.dumps(HELLO).encode()
    assert asked(live.url, "/v1/chat/completions", JSON, *fields, body=body)[0] == status


def test_a_command_is_short(live: Live) -> None:
    body = json.dumps({"lora_name": "x" * MAX_ADMIN_BODY, "lora_path": "/x"}).encode()
    assert asked(live.url, LOAD, JSON, body=body)[0] == 413


class Counted(Chat):
    """Counts the characters that the tokenizer is given."""

    characters = 0

    def _encode(self, text: str):  # type: ignore[no-untyped-def]
        type(self).characters += len(text)
        return super()._encode(text)


def test_a_text_that_cannot_fit_is_refused_before_the_tokenizer_sees_it(
    base: Policy, checkpoint: Path
) -> None:
    chat = Counted(checkpoint)
    text = "Hello, " * 2_000_000
    with listening(base, chat) as live:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
            ("/v1/completions", {"prompt": text}),
            ("/v1/completions", {"prompt": ["short", text]}),
        ):
            response = httpx2.post(f"{live.url}{path}", json=body, timeout=120)
            assert response.status_code == 400, response.text
            assert "maximum context length" in response.json()["error"]["message"]
            assert Counted.characters < 1_000
            Counted.characters = 0


class Slow(Chat):
    """Encodes the word `linger` when it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.may = threading.Event(), threading.Event()

    def _encode(self, text: str):  # type: ignore[no-untyped-def]
        if "linger" in text:
            self.begun.set()
            assert self.may.wait(60), "nobody else was answered"
        return super()._encode(text)


def test_others_are_answered_while_a_long_text_is_encoded(base: Policy, checkpoint: Path) -> None:
    chat = Slow(checkpoint)
    with listening(base, chat) as live:
        text = "linger " * 6_000
        long = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        statuses: list[int] = []

        def ask() -> None:
            response = httpx2.post(f"{live.url}/v1/chat/completions", json=long, timeout=120)
            statuses.append(response.status_code)

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        assert chat.begun.wait(60)
        try:
            response = httpx2.post(f"{live.url}/v1/chat/completions", json=HELLO, timeout=20)
            assert response.status_code == 200
        finally:
            chat.may.set()
            for thread in asking:
                thread.join()
    assert set(statuses) <= {200, 400}
    assert len(statuses) == 3


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [[1]] * 200_000}),
        ("/v1/completions", {"prompt": ["a"] * 200_000}),
        ("/v1/completions", {"prompt": [{}] * 200_000}),
        ("/v1/completions", {"prompt": [1, *[[]] * 200_000]}),
        ("/v1/chat/completions", HELLO | {"messages": HELLO["messages"] * (MAX_MESSAGES + 1)}),  # type: ignore[operator]
        ("/v1/chat/completions", HELLO | {"stop": ["a"] * 1000}),
        ("/v1/chat/completions", HELLO | {"stop": "a" * 100_000}),
    ],
)
def test_many_small_things_are_refused_by_their_number(
    path: str, body: dict[str, object], live: Live
) -> None:
    response = httpx2.post(f"{live.url}{path}", json=body, timeout=120)
    assert response.status_code == 400, response.text
    assert len(response.content) < 2_000
