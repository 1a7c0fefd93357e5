"""Sessions of very many calls: what one event can name, and what memory they take."""

import json
import tracemalloc
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from consumers.tables import Rollout
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.sessions import closing
from daemon.sessions.closing import close_sessions
from events import codec
from events.codec import encode
from events.envelope import Envelope, new_id, utc_now
from events.errors import TooLarge
from events.log import Entry, now_ms
from events.messages import Message
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallsGathered,
    CallStartContent,
    CallStarted,
    EventData,
    SessionEnded,
)
from events.streams import MAX_VALUE_BYTES
from ops.faults.session_poison import LARGE, good, noise
from tests.daemon.conftest import Kintsugi

START = utc_now() - timedelta(days=1)


def entry(data: EventData, place: int) -> Entry:
    moment = START + timedelta(milliseconds=place)
    envelope = Envelope(new_id(), data.TYPE, data.VERSION, data.key(), moment)
    return encode(envelope, data, now_ms()).entry


def talk(session: str, calls: int, forks: int = 0) -> list[Entry]:
    """A chain of calls, each two messages longer than the one before, and some on the side."""
    entries: list[Entry] = []
    parent: str | None = None
    for number in range(calls):
        call = f"{session}/{number}"
        started = CallStarted(
            call=call, session=session, alias="agent", base="base", policy="base", parent=parent,
            parent_messages=2 * number, content=said("user", f"question {number}"),
        )  # fmt: skip
        answer = CallEndContent(messages=(Message(role="assistant", content="yes"),))
        ended = CallEnded(call=call, session=session, outcome="completed", content=answer)
        entries += [entry(started, 2 * number), entry(ended, 2 * number + 1)]
        parent = call
    for number in range(forks):
        aside = CallStarted(
            call=f"{session}/aside {number}", session=session, alias="agent", base="base",
            policy="base",
        )  # fmt: skip
        entries.append(entry(aside, 2 * calls + number))
    over = SessionEnded(session=session, because="asked")
    return [*entries, entry(over, 2 * calls + forks + 1)]


def said(role: Any, words: str) -> CallStartContent:
    return CallStartContent(messages=(Message(role=role, content=words),))


@pytest.fixture
def app(home: Path) -> Iterator[App]:
    with App(Settings(home=home)) as opened:
        yield opened


def events(kintsugi: Kintsugi, kind: str) -> list[dict[str, Any]]:
    lines = kintsugi("log", "cat", "rollouts", "--json").out.splitlines()
    return [one["data"] for one in map(json.loads, lines) if one["type"] == kind]


def test_calls_that_one_event_cannot_name_stand_in_events_before_it(
    app: App, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "MOST_CALLS", 4)
    app.append([*talk("long", 10, forks=5), *talk("short", 4)])
    assert close_sessions(app, utc_now()).rollouts == 2
    assert close_sessions(app, utc_now()).rollouts == 0
    gathered = events(kintsugi, "CallsGathered")
    assert [one["number"] for one in gathered] == [0, 1, 2, 3, 4]
    assert [call for one in gathered for call in one["calls"]] == [f"long/{n}" for n in range(10)]
    assert [call for one in gathered for call in one["forks"]] == [
        f"long/aside {number}" for number in range(5)
    ]
    made = {one["session"]: one for one in events(kintsugi, "RolloutEnded")}
    assert (made["long"]["calls"], made["long"]["gathered"]) == ([], 15)
    assert (len(made["short"]["calls"]), made["short"]["gathered"]) == (4, 0)
    (shown,) = (
        kintsugi("rollouts", "show", one["rollout"], "--json").json
        for one in made.values()
        if one["session"] == "long"
    )
    assert len(shown["messages"]) == 20
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_one_event_has_room_for_so_many_ids() -> None:
    """With the longest ids that a client may choose there are fewer than ours, and still room."""
    calls = tuple(new_id() for _ in range(closing.MOST_CALLS))
    data = CallsGathered(rollout=new_id(), session=new_id(), number=0, calls=calls)
    assert len(entry(data, 0).value) < MAX_VALUE_BYTES / 2


def test_the_memory_that_a_session_takes_grows_with_what_was_said_in_it(app: App) -> None:
    def peak(session: str, calls: int) -> int:
        app.append(talk(session, calls))
        app.settle()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert close_sessions(app, utc_now()).rollouts == 1
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        peak("first", 100)  # whatever is imported and kept once
        few, many = peak("few", 300), peak("many", 2400)
    finally:
        tracemalloc.stop()
    # Eight times the calls: so much more where it is linear, and 64 times where it is quadratic.
    assert many < 20 * few


def test_a_rollout_whose_words_lie_in_a_blob_has_its_labels(app: App, kintsugi: Kintsugi) -> None:
    """No fold opens a blob, so who closes the session says what the rules say."""
    words = noise(LARGE, "large")
    app.append(good(app, "large", content=said("user", words)))
    assert close_sessions(app, utc_now()).rollouts == 1
    (row,) = kintsugi("rollouts", "ls", "--json").json
    with app.reading() as connection:
        (kept,) = connection.execute(select(Rollout.table())).all()
    assert (kept.rollout, kept.messages) == (row["rollout"], 2)
    shown = kintsugi("rollouts", "show", row["rollout"], "--json").json
    assert shown["messages"][0]["content"] == words
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_what_could_never_be_read_again_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_DECODED_BYTES", 1000)
    data = CallStarted(
        call="c", session="talk", alias="agent", base="base", policy="base",
        content=said("user", "a" * 2000),
    )  # fmt: skip
    with pytest.raises(TooLarge, match="CallStarted talk has a section of 2,0"):
        entry(data, 0)
