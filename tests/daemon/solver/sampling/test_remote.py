"""Rollouts from a server: exact tokens of the right policy version, or none."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.solver.job import run
from daemon.solver.sampling.remote import Pace
from daemon.solver.telemetry.outcome import Outcome
from daemon.solver.telemetry.progress import Progress
from events.jobs import JobSpec
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.solver import letters


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def served(base: Path) -> Iterator[Live]:
    """The base, as our engine serves it."""
    with listening(Policy.load(base, "letters"), Chat(base)) as live:
        yield live


def trained(base: Path, out: Path, url: str, **changes: Any) -> tuple[Outcome, list[Progress]]:
    source = {"kind": "endpoint", "url": f"{url}/v1", "model": "letters", **changes}
    sampler = {**letters.spec(base)["sampler"], "source": source}
    said: list[Progress] = []
    spec = JobSpec.model_validate(letters.spec(base, sampler=sampler))
    return run(spec, out, said.append), said


def models(url: str) -> list[str]:
    return [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]]


def test_each_batch_is_played_by_the_newest_policy(
    served: Live, base: Path, tmp_path: Path
) -> None:
    outcome, said = trained(base, tmp_path, served.url)
    assert outcome.outcome == "trained", outcome.reason
    steps = [progress.metrics for progress in said if progress.metrics]
    updated = [step for step in steps if step.updated]
    assert len(updated) > 3
    assert all(step.refused == 0 for step in steps)
    # An older version's log-probabilities would be far off: the learning rate is large.
    assert max(step.mismatch_max for step in updated) < 1e-4
    assert models(served.url) == ["letters"], "every version was unloaded"
    assert not list((tmp_path / "versions").iterdir())


@pytest.mark.long
def test_what_a_killed_job_left_on_the_server_is_unloaded(
    served: Live, base: Path, tmp_path: Path
) -> None:
    outcome, _ = trained(base, tmp_path / "first", served.url)
    left = tmp_path / "shared" / "j" / "j-3-cafe"
    left.parent.mkdir(parents=True)
    Path(str(outcome.adapter)).rename(left)
    load = {"lora_name": left.name, "lora_path": str(left)}
    httpx2.post(f"{served.url}/v1/load_lora_adapter", json=load).raise_for_status()
    assert left.name in models(served.url)
    shared = str(tmp_path / "shared")
    again, _ = trained(base, tmp_path / "second", served.url, adapters=shared)
    assert again.outcome == "trained"
    assert models(served.url) == ["letters"]
    assert not left.exists()


@contextmanager
def listening_app(app: Starlette) -> Iterator[str]:
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(http.serve()))
    thread.start()
    try:
        while not http.started:
            pass
        yield f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join()


async def _wordy(_: Request) -> JSONResponse:
    """Answers as an endpoint without token ids does."""
    message = {"role": "assistant", "content": "a"}
    return JSONResponse({"choices": [{"message": message, "finish_reason": "stop"}]})


async def _miscounting(_: Request) -> JSONResponse:
    """Answers as an endpoint does whose parser swallows tokens: fewer ids than it counts."""
    choice = {
        "message": {"role": "assistant", "content": "a"},
        "finish_reason": "stop",
        "token_ids": [5, 1],
        "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.5}]},
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 7}
    return JSONResponse({"choices": [choice], "prompt_token_ids": [3, 2, 4], "usage": usage})


async def _unwilling(_: Request) -> PlainTextResponse:
    return PlainTextResponse("no adapters here", status_code=404)


@pytest.mark.parametrize("answers", [_wordy, _miscounting])
def test_answers_without_tokens_are_not_trained_on(
    answers: Callable[[Request], Awaitable[JSONResponse]], base: Path, tmp_path: Path
) -> None:
    app = Starlette(routes=[Route("/v1/chat/completions", answers, methods=["POST"])])
    with listening_app(app) as url:
        outcome, said = trained(base, tmp_path, url)
    assert outcome.outcome == "failed"
    assert "128 cannot be trained on" in str(outcome.reason)
    assert "no exact tokens: its engine sent none, or counts others" in str(outcome.reason)
    assert all(p.metrics and p.metrics.refused == p.metrics.rollouts for p in said)


def test_a_server_that_loads_no_adapters_is_named(served: Live, base: Path, tmp_path: Path) -> None:
    async def passed_on(request: Request) -> JSONResponse:
        async with httpx2.AsyncClient(timeout=60) as client:
            answer = await client.post(
                f"{served.url}/v1/chat/completions", content=await request.body()
            )
        return JSONResponse(answer.json(), status_code=answer.status_code)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", passed_on, methods=["POST"]),
            Route("/v1/load_lora_adapter", _unwilling, methods=["POST"]),
        ]
    )
    with listening_app(app) as url:
        outcome, said = trained(base, tmp_path, url)
    assert outcome.outcome == "failed"
    assert "HTTP 404: no adapters here; start the server so that it" in str(outcome.reason)
    assert len(said) == 1


def test_nobody_there_is_a_failure_that_can_be_resumed(
    served: Live, base: Path, tmp_path: Path
) -> None:
    outcome, _ = trained(base, tmp_path, served.url, api_key_variable="NO_SUCH_KEY")
    assert "from NO_SUCH_KEY, which is not set" in str(outcome.reason)


def test_requests_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep, thread = asyncio.sleep, threading.get_ident()

    async def waited(seconds: float) -> None:
        # Servers of this process sleep in threads of their own.
        if threading.get_ident() == thread:
            waits.append(seconds)
        else:
            await sleep(seconds)

    async def ask(per_second: float | None) -> None:
        pace = Pace(per_second)
        for _ in range(4):
            await pace.wait()

    monkeypatch.setattr("daemon.solver.sampling.remote.asyncio.sleep", waited)
    asyncio.run(ask(0.01))
    assert [round(wait / 100) for wait in waits] == [0, 1, 2, 3]
    waits.clear()
    asyncio.run(ask(None))
    assert waits == []
