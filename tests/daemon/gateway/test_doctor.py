"""`kintsugi doctor --upstream`: what an engine does wrong is found by asking it, and named."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.daemon.conftest import Kintsugi
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.test_troubles import unused_url
from tests.daemon.listening import at_a_port

Json = dict[str, Any]

EVERYWHERE = [
    "models", "version", "return_token_ids", "logprobs-mode", "generation-config",
    "tool-strict-level", "control-tokens", "processes", "enable-auto-tool-choice", "enable-lora",
]  # fmt: skip


def examined(kintsugi: Kintsugi, url: str) -> tuple[int, dict[str, tuple[bool, str]]]:
    """The exit code, and what was found."""
    result = kintsugi("doctor", "--upstream", f"{url}/v1", "--json")
    found = {one["check"]: (one["ok"], one["detail"]) for one in result.json["checks"]}
    assert result.json["ok"] == all(ok for ok, _ in found.values()) == (result.code == 0)
    return result.code, found


def failed(found: dict[str, tuple[bool, str]]) -> set[str]:
    return {name for name, (ok, _) in found.items() if not ok}


def served(url: str) -> list[str]:
    return [card["id"] for card in httpx2.get(f"{url}/v1/models").json()["data"]]


def test_the_embedded_engine_is_as_it_must_be(kintsugi: Kintsugi, live: Live) -> None:
    code, found = examined(kintsugi, live.url)
    assert (code, failed(found)) == (0, set()), found
    assert list(found) == EVERYWHERE
    assert served(live.url) == ["tiny"], "nothing stays loaded"


def test_an_engine_that_is_not_there_is_unavailable(kintsugi: Kintsugi) -> None:
    code, found = examined(kintsugi, unused_url())
    assert (code, failed(found)) == (4, {"models"})


def test_an_address_that_is_none_is_wrong_usage(kintsugi: Kintsugi) -> None:
    result = kintsugi("doctor", "--upstream", "http://127.0.0.1:1", "--json")
    assert result.code == 2
    assert "ends in /v1" in result.err


Script = Callable[..., str]


@pytest.fixture
def scripted() -> Iterator[Script]:
    """A server that says what it is told to, and refuses the rest."""
    with ExitStack() as stack:

        def serve(key: str | None = None, **answers: Any) -> str:
            said = {"/" + path.replace("__", "/"): cycle(many) for path, many in answers.items()}

            async def answer(request: Request) -> Response:
                if key is not None and request.headers.get("authorization") != f"Bearer {key}":
                    return JSONResponse({"error": {"message": "who?"}}, 401)
                if request.url.path not in said:
                    return JSONResponse({"detail": "Not Found"}, 404)
                return JSONResponse(next(said[request.url.path]))

            app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
            return stack.enter_context(at_a_port(app))

        yield serve


def models(owner: str, *names: str) -> Json:
    return {"data": [{"id": name, "owned_by": owner, "parent": None} for name in names]}


def test_a_server_that_refuses_every_probe_fails_them_all(
    kintsugi: Kintsugi, scripted: Script
) -> None:
    url = scripted(v1__models=[models("vllm", "base")], version=[{"version": "0.32.0"}])
    code, found = examined(kintsugi, url)
    assert code == 1
    assert failed(found) == {"return_token_ids", "enable-auto-tool-choice", "enable-lora"}
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in found["enable-lora"][1]


@pytest.mark.parametrize(
    ("version", "ok"),
    [("0.24.0", False), ("0.32.0", True), ("0.32.1.dev4+g1", True), ("1.0", True), ("dev", False)],
)
def test_a_vllm_that_mixes_adapters_up_is_refused(
    kintsugi: Kintsugi, scripted: Script, version: str, ok: bool
) -> None:
    url = scripted(v1__models=[models("vllm", "base")], version=[{"version": version}])
    _, found = examined(kintsugi, url)
    assert found["version"][0] == ok
    assert version in found["version"][1]


def test_processes_that_know_different_adapters_are_found(
    kintsugi: Kintsugi, scripted: Script
) -> None:
    url = scripted(v1__models=[models("vllm", "base"), models("vllm", "base", "adapter")])
    _, found = examined(kintsugi, url)
    assert not found["processes"][0]
    assert "--api-server-count 1" in found["processes"][1]


def test_commands_of_developers_are_told(kintsugi: Kintsugi, scripted: Script) -> None:
    _, found = examined(kintsugi, scripted(v1__models=[models("vllm", "base")], server_info=[{}]))
    assert found["commands"][0]
    assert "/server_info" in found["commands"][1]


def test_control_tokens_that_a_message_can_spell_are_told_with_the_remedy(
    kintsugi: Kintsugi, scripted: Script, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_GATEWAY__CONTROL_STRINGS", '["<|im_end|>", "<|mine|>"]')
    vllm = models("vllm", "base")
    url = scripted(
        v1__models=[vllm],
        tokenize=[{"count": 1, "tokens": [7]}, {"count": 4, "tokens": [1, 2, 3, 4]}],
    )
    ok, detail = examined(kintsugi, url)[1]["control-tokens"]
    assert ok, "it is a risk that the gateway's settings decide, and no wrong flag of the engine"
    assert detail.startswith("one token each: <|im_end|>; a message that spells one can forge")
    assert 'set gateway.control_tokens = "refuse"' in detail
    silent = examined(kintsugi, scripted(v1__models=[vllm]))[1]["control-tokens"]
    assert silent == (True, "cannot be seen, for the engine answers no /tokenize")
    safe = examined(
        kintsugi, scripted(v1__models=[vllm], tokenize=[{"count": 5, "tokens": [1] * 5}])
    )[1]
    assert "none of gateway.control_strings" in safe["control-tokens"][1]
    cards: Json = {"v1__models": [vllm], "tokenize": [{"count": 1, "tokens": [7]}]}
    for read, is_text in (([1, 7, 7, 2], False), ([1, 7, 5, 5, 2], True)):
        chats = [{"prompt_token_ids": [1, 7, 2]}, {"prompt_token_ids": read}]
        proof = examined(kintsugi, scripted(**cards, v1__chat__completions=chats))[1]
        shown = proof["control-tokens"][1] == "message texts are encoded without them"
        assert shown == is_text, proof
    own = examined(kintsugi, live.url)[1]["control-tokens"]
    assert own == (True, "message texts are encoded without them")
    monkeypatch.setenv("KINTSUGI_GATEWAY__CONTROL_TOKENS", "refuse")
    told = examined(kintsugi, scripted(v1__models=[vllm], tokenize=[{"count": 1, "tokens": [7]}]))[
        1
    ]
    assert told["control-tokens"][1].endswith("and the gateway refuses it")


def test_an_engine_of_another_kind_is_told(kintsugi: Kintsugi, scripted: Script) -> None:
    code, found = examined(kintsugi, scripted(v1__models=[models("somebody", "base")]))
    assert (code, found["models"][0]) == (1, False)
    assert "train nothing" in found["models"][1]


def test_an_engine_is_asked_with_the_key_that_is_configured_for_it(
    kintsugi: Kintsugi, scripted: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"v1__models": [models("vllm", "base")], "version": [{"version": "0.32.0"}]}
    url = scripted(key="k-1", **said)
    code, found = examined(kintsugi, url)
    assert (code, list(found)) == (4, ["models"])
    assert "answers 401" in found["models"][1]
    monkeypatch.setenv("KINTSUGI_UPSTREAMS", f'[{{"url": "{url}/v1", "api_key": "k-1"}}]')
    _, found = examined(kintsugi, url)
    assert found["models"][0]
    assert found["version"][0]
