"""From calls to a rollout that diagnosis reads: the agent plays through the gateway."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daemon.config.settings import load
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from daemon.sessions.conversations import Node, main_line
from envs.shop.environment import Shop
from events.envelope import utc_now
from producers.gateway.privacy.keys import ClientKey, hash_key
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.engine.conftest import Live, Recite
from tests.daemon.gateway.conftest import Fronted, fronting

__all__ = ["clean", "home", "kintsugi"]

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "get_user", "parameters": {"type": "object"}}}]
CALL = 'L<tool_call>\n{"name": "get_user", "arguments": {"user_id": "U12"}}\n</tool_call>'


def ask(front: Fronted, messages: Sequence[Any], **given: Any) -> dict[str, Any]:
    """The answer to a conversation."""
    headers = given.pop("headers", {"x-kintsugi-session": "talk"})
    body = {"messages": messages, "max_tokens": 24, **given}
    answer = httpx2.post(f"{front.url}{CHAT}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]["message"]
    return found


def shown(kintsugi: Kintsugi) -> list[dict[str, Any]]:
    """Every rollout, whole."""
    listed = kintsugi("rollouts", "ls", "--json").json
    return [kintsugi("rollouts", "show", one["rollout"], "--json").json for one in listed]


def worked(kintsugi: Kintsugi) -> tuple[int, int]:
    """Sessions that a round of work ended, and rollouts that it made."""
    done = kintsugi("work", "--once").json
    return done["ended"], done["rollouts"]


def test_a_closed_session_is_a_rollout_with_all_that_was_said(
    recite: Recite, home: Path, kintsugi: Kintsugi
) -> None:
    home.mkdir()
    with fronting(home, [recite(CALL).url]) as front:
        said: list[Any] = [SYSTEM, {"role": "user", "content": "Who is U12?"}]
        said.append(ask(front, said, tools=TOOLS))
        result = {"role": "tool", "tool_call_id": said[-1]["tool_calls"][0]["id"]}
        said.append({**result, "content": json.dumps({"name": "Rosa"})})
        said.append(ask(front, said, tools=TOOLS))
        ask(front, [{"role": "user", "content": "A title for this, please."}])
        calls = [call.call for call in front.started()]
        httpx2.post(f"{front.url}/v1/sessions/talk/end")
    assert worked(kintsugi) == (0, 1)
    assert worked(kintsugi) == (0, 0)
    (rollout,) = shown(kintsugi)
    assert [m["role"] for m in rollout["messages"]] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert rollout["messages"][2]["tool_calls"][0]["name"] == "get_user"
    assert (rollout["success"], rollout["source"], rollout["termination"]) == (
        None,
        "live",
        "asked",
    )
    (event,) = [
        line["data"]
        for line in kintsugi("log", "cat", "rollouts", "--json").lines
        if line["type"] == "RolloutEnded"
    ]
    assert (event["calls"], event["forks"]) == (calls[:2], calls[2:])
    assert event["known_tools"] == ["get_user"]
    assert kintsugi("diagnose", "--json").json["unjudged"] == 1
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_an_idle_session_ends_by_an_event_and_may_go_on(
    live: Live, home: Path, kintsugi: Kintsugi
) -> None:
    home.mkdir()
    with fronting(home, [live.url]) as front:
        first: list[Any] = [{"role": "user", "content": "One"}]
        first.append(ask(front, first))
        with App(load()) as app:
            assert close_sessions(app, utc_now()).ended == 0
            later = utc_now() + timedelta(seconds=app.settings.sessions.idle_seconds)
            done = close_sessions(app, later)
            assert (done.ended, done.rollouts) == (1, 1)
            assert close_sessions(app, later).ended == 0
        first.append({"role": "user", "content": "Two"})
        ask(front, first)
        with App(load()) as app:
            # Of the clock of the decision above, this call is older than it.
            done = close_sessions(app, later + timedelta(hours=1))
            assert (done.ended, done.rollouts) == (1, 1), "what came late is not left behind"
            assert close_sessions(app, later + timedelta(hours=2)).ended == 0
        assert [call.parent is None for call in front.started()] == [True, False]
    talks = [[message["content"] for message in one["messages"]] for one in shown(kintsugi)]
    assert sorted(len(talk) for talk in talks) == [2, 4]
    assert all(talk[0] == "One" for talk in talks)
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_a_task_of_a_trusted_client_is_graded_by_replay(
    live: Live, home: Path, kintsugi: Kintsugi
) -> None:
    home.mkdir()
    environment = Shop()
    (task,) = [t for t, _ in zip(environment.tasks(), range(1), strict=False)]
    key = ClientKey("grader", hash_key("k"), frozenset(("call", "trusted")))
    headers = {"authorization": "Bearer k~talk", "x-kintsugi-task": task.id}
    with fronting(home, [live.url], keys=[key]) as front:
        ask(front, [{"role": "user", "content": "Hello"}], headers=headers)
        with App(load()) as app:
            close_sessions(app, utc_now() + timedelta(hours=1))
    (rollout,) = shown(kintsugi)
    assert (rollout["task"], rollout["success"]) == (task.id, False)
    assert rollout["category"] is not None
    kintsugi("diagnose")
    assert kintsugi("patterns", "--json").json[0]["failures"] == 1


def test_a_compaction_and_a_side_question_are_forks() -> None:
    chain = [Node("a", None, 3), Node("b", "a", 5), Node("title", None, 2), Node("c", "b", 7)]
    assert main_line(chain) == (("a", "b", "c"), ("title",))
    compacted = [*chain, Node("d", None, 4), Node("e", "d", 6)]
    assert main_line(compacted) == (("a", "b", "c"), ("title", "d", "e"))
    outgrown = [*compacted, Node("f", "e", 8)]
    assert main_line(outgrown) == (("d", "e", "f"), ("a", "b", "title", "c"))


@pytest.fixture(autouse=True)
def _home(home: Path) -> Path:
    """Commands and gateway share the home."""
    return home


def test_sessions_that_ended_twice_before_anybody_looked_are_rollouts_once(
    live: Live, home: Path, kintsugi: Kintsugi
) -> None:
    home.mkdir()
    with fronting(home, [live.url]) as front:
        for session in ("one", "two"):
            hello = [{"role": "user", "content": "Hello"}]
            ask(front, hello, headers={"x-kintsugi-session": session})
        for session in ("one", "two"):
            httpx2.post(f"{front.url}/v1/feedback", json={"session": session, "score": 1})
            httpx2.post(f"{front.url}/v1/sessions/{session}/end")
    assert worked(kintsugi) == (0, 2)
    assert worked(kintsugi) == (0, 0)
    assert len(shown(kintsugi)) == 2
