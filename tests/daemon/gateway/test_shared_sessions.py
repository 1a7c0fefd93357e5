"""Several persons in one session: erasing one of them takes nothing from the others."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from consumers.database import sqlite_url
from daemon.config.settings import load
from daemon.core.app import App
from events.messages import Message
from events.privacy.keys import KeyStore
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    SessionEnded,
)
from producers.gateway.capture.recorder import About, Recorder
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.engine.conftest import Recite
from tests.daemon.gateway.conftest import Fronted, fronting
from tests.daemon.gateway.test_rollouts import shown

__all__ = ["clean", "home", "kintsugi"]

SAID = "L"
"""What the model says to everything."""
HELLO = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": SAID}


def say(front: Fronted, person: str | None, *messages: Any, session: str | None = "desk") -> str:
    """A call of a person; its session."""
    headers = {"x-kintsugi-user": person or "", "x-kintsugi-session": session or ""}
    body = {"messages": list(messages), "max_tokens": 8}
    headers = {name: value for name, value in headers.items() if value}
    answer = httpx2.post(f"{front.url}/v1/chat/completions", json=body, timeout=60, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == SAID
    return str(answer.headers["x-kintsugi-session"])


def words(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"Turn {number}"}


@pytest.mark.parametrize("restarted", [False, True])
def test_who_began_word_for_word_like_an_erased_person_is_readable(
    recite: Recite, home: Path, kintsugi: Kintsugi, restarted: bool
) -> None:
    home.mkdir()
    engine = recite(SAID).url
    people = KeyStore(sqlite_url(home / "keys.db"))
    others = ("rosa", "otto", None)
    with fronting(home, [engine], people=people) as front:
        for person in others:
            say(front, person, HELLO)
        if not restarted:
            for person in others:
                say(front, person, HELLO, ANSWER, words(1))
    if restarted:
        with fronting(home, [engine], people=people) as front:
            for person in others:
                say(front, person, HELLO, ANSWER, words(1))
    people.close()
    assert kintsugi("erase", "--person", "rosa", "--yes", "--json").json["leaning"] == 0
    with App(load()) as app:
        recorder = Recorder(app.spool, app.blobs, app.keys)
        end = SessionEnded(session="desk", because="asked")
        asyncio.run(recorder.append(end, About()))
    assert kintsugi("work", "--once").json["rollouts"] == 1
    (rollout,) = shown(kintsugi)
    assert [one["content"] for one in rollout["messages"]] == ["Hello", SAID, "Turn 1", SAID]
    assert (rollout["erased"], rollout["reason"]) == (False, None)


def test_calls_of_one_person_alone_are_stored_as_what_they_add(
    recite: Recite, tmp_path: Path
) -> None:
    people = KeyStore(sqlite_url(tmp_path / "keys.db"))
    with fronting(tmp_path, [recite(SAID).url], people=people) as front:
        for person in ("rosa", "otto", None):
            say(front, person, HELLO)
            say(front, person, HELLO, ANSWER, words(1))
        calls = front.started()
        keys = {e.data.call: e.envelope.keyid for e in front.events() if e.data in calls}
    people.close()
    by_call = {one.call: one for one in calls}
    goes_on = [one for one in calls if one.parent is not None]
    assert len(goes_on) == 3
    for one in goes_on:
        assert one.parent is not None
        assert keys[one.call] == keys[by_call[one.parent].call]


def test_who_comes_back_after_being_erased_goes_on_from_nothing_that_is_lost(
    recite: Recite, tmp_path: Path
) -> None:
    now = [0.0]
    people = KeyStore(sqlite_url(tmp_path / "keys.db"), clock=lambda: now[0])
    with fronting(tmp_path, [recite(SAID).url], people=people) as front:
        say(front, "rosa", HELLO)
        key = people.find_in_store("rosa")
        assert key is not None
        people.destroy(key.id)
        say(front, "rosa", HELLO, ANSWER, words(1))
        say(front, "rosa", HELLO, ANSWER, words(1), ANSWER, words(2))
        first, second, third = front.started()
    people.close()
    assert (first.parent, second.parent, third.parent) == (None, None, second.call)


def test_what_an_earlier_version_stored_between_persons_is_said_to_be_lost(
    home: Path, kintsugi: Kintsugi
) -> None:
    """Otto's call holds only what it adds to Rosa's."""

    def started(call: str, text: str, parent: str | None = None) -> CallStarted:
        content = CallStartContent(messages=(Message(role="user", content=text),))
        return CallStarted(
            call=call, session="desk", alias="agent", base="tiny", policy="tiny", content=content,
            parent=parent, parent_messages=0 if parent is None else 2,
        )  # fmt: skip

    def ended(call: str) -> CallEnded:
        content = CallEndContent(messages=(Message(role="assistant", content=SAID),))
        return CallEnded(call=call, session="desk", outcome="completed", content=content)

    async def talk(recorder: Recorder) -> None:
        for data, person in (
            (started("c1", "Hello"), "rosa"),
            (ended("c1"), "rosa"),
            (started("c2", "Turn 1", "c1"), "otto"),
            (ended("c2"), "otto"),
        ):
            await recorder.append(data, About(person))

    with App(load()) as app:
        asyncio.run(talk(Recorder(app.spool, app.blobs, app.keys)))
    done = kintsugi("erase", "--person", "rosa", "--yes", "--json").json
    assert (done["erased"], done["leaning"]) == (True, 1)
    assert "1 calls of others" in done["limits"][-1]
    with App(load()) as app:
        recorder = Recorder(app.spool, app.blobs, app.keys)
        asyncio.run(recorder.append(SessionEnded(session="desk", because="asked"), About()))
    assert kintsugi("work", "--once").json["rollouts"] == 1
    (rollout,) = shown(kintsugi)
    assert (rollout["messages"], rollout["erased"]) == ([], True)
    assert "erased" in rollout["reason"]
    assert kintsugi("rebuild", "--json").json["equal"] is True
