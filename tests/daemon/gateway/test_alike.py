"""Customers who say the same, over HTTP: each rollout holds the calls of one."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from daemon.config.settings import load
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from events.envelope import utc_now
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.engine.conftest import Recite
from tests.daemon.gateway.conftest import Fronted, fronting

__all__ = ["clean", "home", "kintsugi"]

SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = {"role": "user", "content": "Hello"}


def ask(front: Fronted, messages: list[Any], **fields: Any) -> str:
    """Ask and remember the answer; the call's id."""
    answer = httpx2.post(
        f"{front.url}/v1/chat/completions",
        json={"messages": messages, "max_tokens": 8, **fields},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    messages.append(answer.json()["choices"][0]["message"])
    return str(answer.headers["x-kintsugi-call"])


@pytest.mark.parametrize("at_once", [True, False])
def test_five_customers_who_begin_alike_are_in_no_rollout_together(
    recite: Recite, home: Path, kintsugi: Kintsugi, at_once: bool
) -> None:
    home.mkdir()
    talks: list[list[Any]] = [[SYSTEM] for _ in range(5)]
    calls: list[list[str]] = [[] for _ in talks]
    turns = [(customer, turn) for customer in range(5) for turn in range(3)]
    if at_once:
        turns.sort(key=lambda place: place[1])
    with fronting(home, [recite("L").url]) as front:
        for customer, turn in turns:
            words = "Hello" if turn == 0 else f"I am {customer}, {turn}"
            talks[customer].append({"role": "user", "content": words})
            calls[customer].append(ask(front, talks[customer]))
        with App(load()) as app:
            idle = timedelta(seconds=app.settings.sessions.idle_seconds)
            close_sessions(app, utc_now() + idle)
    lines = kintsugi("log", "cat", "rollouts", "--json").out.splitlines()
    events = [json.loads(line) for line in lines]
    rollouts = [one["data"] for one in events if one["type"] == "RolloutEnded"]
    held = [{*one["calls"], *one["forks"]} for one in rollouts]
    assert all(any(group <= set(own) for own in calls) for group in held)
    assert [one["forks"] for one in rollouts] == [[]] * len(rollouts)
    if at_once:
        # The five openings, and what each said then.
        assert sorted(map(len, held)) == [1] * 5 + [2] * 5
    else:
        assert sorted(map(len, held)) == [3] * 5


@pytest.mark.parametrize("name", ["user", "safety_identifier", "prompt_cache_key"])
def test_what_a_request_says_of_its_user_joins_nothing(
    recite: Recite, tmp_path: Path, name: str
) -> None:
    with fronting(tmp_path, [recite("L").url]) as front:
        for words in ("Hello", "Other words"):
            ask(front, [SYSTEM, {"role": "user", "content": words}], **{name: "rosa"})
        alike: list[list[Any]] = [[SYSTEM, HELLO] for _ in range(2)]
        for said in alike:
            ask(front, said, **{name: "rosa"})
        ask(front, [*alike[0], {"role": "user", "content": "And?"}], **{name: "rosa"})
        started = front.started()
    assert [one.attribution for one in started] == ["none"] * 5
    assert len({one.session for one in started}) == 5


def test_a_session_that_is_sent_back_ends_all_doubt(recite: Recite, tmp_path: Path) -> None:
    """What the first answer named costs a client one header."""
    with fronting(tmp_path, [recite("L").url]) as front:
        for _ in range(2):
            said: list[Any] = [HELLO]
            ask(front, said)
        last = front.started()[-1].session
        said.append({"role": "user", "content": "And?"})
        httpx2.post(
            f"{front.url}/v1/chat/completions",
            json={"messages": said, "max_tokens": 8},
            headers={"x-kintsugi-session": last},
            timeout=60,
        )
        found = front.started()[-1]
    assert (found.session, found.attribution, found.parent_messages) == (last, "header", 2)
