"""Sessions that cannot become rollouts stop no other one, and nothing else."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daemon.app import App
from daemon.serving.fleet import open_fleet
from daemon.sessions import close_sessions
from daemon.settings import Environments, Privacy, Settings
from daemon.work import Worked, Worker
from events.codec import encode
from events.envelope import Envelope, minted_id, utc_now
from events.log import Entry, now_ms
from events.messages import Message
from events.rollouts import (
    CallEnded,
    CallEndedContent,
    CallStarted,
    CallStartedContent,
    EventData,
    SessionEnded,
)
from tests.daemon.conftest import Kintsugi
from tests.envs.test_registry import write_environment

START = utc_now() - timedelta(days=2)
LATER = START + timedelta(hours=1)
LARGE = 1_000_000


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


class Talk:
    """The events of one session."""

    def __init__(self, app: App, session: str, person: str | None = None) -> None:
        self.app, self.session, self.person = app, session, person
        self.blobs: list[str] = []

    def entry(self, data: EventData, second: int) -> Entry:
        envelope = Envelope(
            minted_id(), data.TYPE, data.VERSION, data.key(), at(second), person=self.person
        )
        key = None if self.person is None else self.app.keys.of(self.person)
        encoded = encode(envelope, data, now_ms(), owner=key)
        if encoded.blob is not None:
            self.blobs.append(self.app.blobs.put(encoded.blob))
        return encoded.entry

    def call(self, name: str, second: int, words: str = "hello", **options: Any) -> list[Entry]:
        said = CallStartedContent(messages=(Message(role="user", content=words),))
        answer = CallEndedContent(messages=(Message(role="assistant", content="yes"),))
        started = CallStarted(
            call=f"{self.session}/{name}", session=self.session, alias="agent", base="base",
            policy="base", content=said, **options,
        )  # fmt: skip
        ended = CallEnded(
            call=f"{self.session}/{name}", session=self.session, outcome="completed",
            finish_reason="stop", content=answer,
        )  # fmt: skip
        return [self.entry(started, second), self.entry(ended, second + 1)]

    def over(self, second: int) -> list[Entry]:
        return [self.entry(SessionEnded(session=self.session, because="asked"), second)]


@pytest.fixture
def app(home: Path) -> Iterator[App]:
    with App(Settings(home=home)) as opened:
        yield opened


def good(app: App, name: str, second: int = 0) -> list[Entry]:
    talk = Talk(app, name)
    return [*talk.call("a", second), *talk.over(second + 5)]


def incomplete(app: App, name: str) -> list[Entry]:
    talk = Talk(app, name)
    return [*talk.call("a", 0, parent="nowhere", parent_messages=2), *talk.over(5)]


def circular(app: App, name: str) -> list[Entry]:
    talk = Talk(app, name)
    return [*talk.call("a", 0, parent=f"{name}/a", parent_messages=1), *talk.over(5)]


def noise(length: int) -> str:
    from random import Random

    return "".join(Random(1).choices([chr(code) for code in range(33, 55_000)], k=length))


def missing_blob(app: App, name: str) -> list[Entry]:
    talk = Talk(app, name)
    entries = [*talk.call("a", 0, noise(LARGE)), *talk.over(5)]
    assert talk.blobs
    for digest in talk.blobs:
        (app.home / "blobs" / digest[:2] / digest).unlink()
    return entries


def missing_key(app: App, name: str) -> list[Entry]:
    talk = Talk(app, name, person=f"person of {name}")
    entries = [*talk.call("a", 0), *talk.over(5)]
    key = app.keys.named(f"person of {name}")
    assert key is not None
    app.keys.destroy(key.id)
    return entries


def too_large(app: App, name: str) -> list[Entry]:
    """Its head is beyond a record: names of tools are no content."""
    talk = Talk(app, name)
    tools = tuple(
        {"type": "function", "function": {"name": noise(60_000) + str(number)}}
        for number in range(20)
    )
    data = CallStarted(
        call=f"{name}/a", session=name, alias="agent", base="base", policy="base",
        content=CallStartedContent(tools=tools),
    )  # fmt: skip
    return [talk.entry(data, 0), *talk.over(5)]


KINDS = {
    "incomplete": (incomplete, "SessionIncomplete"),
    "circular": (circular, "SessionIncomplete"),
    "missing blob": (missing_blob, "BlobError"),
    "missing key": (missing_key, "KeyMissing"),
    "too large": (too_large, "TooLarge"),
}


def letters(kintsugi: Kintsugi) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kintsugi("dlq", "list", "--json").json
    return found


def events(kintsugi: Kintsugi, kind: str) -> list[dict[str, Any]]:
    lines = kintsugi("log", "cat", "rollouts", "--json").out.splitlines()
    return [one for one in map(json.loads, lines) if one["type"] == kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_that_cannot_be_closed_is_a_dead_letter_and_stops_no_other(
    app: App, kintsugi: Kintsugi, kind: str
) -> None:
    poison, error = KINDS[kind]
    app.append([*good(app, "before"), *poison(app, "bad"), *good(app, "after", 1)])
    closed = close_sessions(app, LATER)
    assert closed.rollouts == 2
    assert [(one.session, one.error) for one in closed.failures] == [("bad", error)]
    app.append(good(app, "later", 10))
    again = close_sessions(app, LATER)
    assert (again.rollouts, again.failures, again.troubles) == (1, (), ())
    (letter,) = letters(kintsugi)
    assert (letter["stream"], letter["type"]) == ("rollouts", "ClosingFailed")
    assert letter["reason"].startswith("session bad: ")
    assert len(events(kintsugi, "ClosingFailed")) == 1
    assert kintsugi("rebuild", "--json").json["equal"] is True
