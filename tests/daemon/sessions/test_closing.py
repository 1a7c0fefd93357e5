"""Closing sessions: every call comes into one rollout, whenever it is recorded."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from consumers.reads.sessions import count_backlog
from daemon.config.settings import load
from daemon.core.app import App
from daemon.sessions.closing import CloseResult, close_sessions
from events.codec import encode
from events.envelope import Envelope, new_id, utc_now
from events.log import Entry, now_ms
from events.rollouts import CallEnded, CallStarted, EventData, SessionEnded
from tests.consumers.plans import plans_of
from tests.daemon.conftest import Kintsugi

START = utc_now() - timedelta(days=2)
END = (utc_now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
"""Later than anything is appended, which is what a log is trimmed by."""


def entry(data: EventData, second: int) -> Entry:
    envelope = Envelope(new_id(), data.TYPE, data.VERSION, data.key(), at(second))
    return encode(envelope, data, now_ms()).entry


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def called(call: str, second: int) -> list[Entry]:
    """A call of a second."""
    started = CallStarted(call=call, session="talk", alias="agent", base="base", policy="base")
    return [entry(started, second), answered(call, second + 1)]


def answered(call: str, second: int) -> Entry:
    ended = CallEnded(call=call, session="talk", outcome="completed", finish_reason="stop")
    return entry(ended, second)


def over(second: int) -> list[Entry]:
    return [entry(SessionEnded(session="talk", because="asked"), second)]


def named(kintsugi: Kintsugi) -> list[list[str]]:
    """The calls of each rollout, in the order of the log."""
    lines = kintsugi("log", "cat", "rollouts", "--json").out.splitlines()
    events = [json.loads(line) for line in lines]
    return [
        [*one["data"]["calls"], *one["data"]["forks"]]
        for one in events
        if one["type"] == "RolloutEnded"
    ]


@pytest.fixture
def app(home: Path) -> Iterator[App]:
    with App(load(home=home)) as opened:
        yield opened


def test_each_end_has_the_calls_since_the_one_before(app: App, kintsugi: Kintsugi) -> None:
    app.append([*called("a", 0), *over(2), *called("b", 3), *called("c", 5), *over(7), *over(8)])
    assert close_sessions(app, at(9)) == CloseResult(ended=0, rollouts=2)
    assert close_sessions(app, at(9)) == CloseResult(ended=0, rollouts=0)
    assert named(kintsugi) == [["a"], ["c", "b"]]
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_a_call_that_comes_when_its_session_is_a_rollout_is_in_another(
    app: App, kintsugi: Kintsugi
) -> None:
    """A gateway that died ships what it had recorded, hours after the session went on elsewhere."""
    app.append([*called("b", 10), *over(12)])
    assert close_sessions(app, at(13)) == CloseResult(ended=0, rollouts=1)
    app.append([*called("a", 0), *over(2), *called("late", 4)])
    with app.reading() as connection:
        assert count_backlog(connection, at(13)) == 0, "nothing of it is folded"
    # What was said before its own end is its own; the other call waits until it was idle for long.
    idle = at(13) + timedelta(seconds=app.settings.sessions.idle_seconds)
    assert close_sessions(app, at(13)) == CloseResult(ended=0, rollouts=1)
    assert close_sessions(app, idle) == CloseResult(ended=1, rollouts=1)
    assert close_sessions(app, idle) == CloseResult(ended=0, rollouts=0)
    assert named(kintsugi) == [["b"], ["a"], ["late"]]
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_an_end_without_a_start_ends_no_session_and_keeps_no_log(
    app: App, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    app.append([answered("lost", 1), *called("whole", 2), *over(4)])
    later = at(4) + timedelta(days=1)
    assert close_sessions(app, later) == CloseResult(ended=0, rollouts=1)
    assert close_sessions(app, later) == CloseResult(ended=0, rollouts=0)
    assert named(kintsugi) == [["whole"]]
    kintsugi("log", "export", tmp_path / "kept")
    trimmed = kintsugi("log", "trim", "--archive", tmp_path / "kept", "--before", END, "--json")
    assert {one["kept_for"] for one in trimmed.json["partitions"]} == {None}
    assert trimmed.json["dropped"] > 0


def test_a_call_that_is_in_no_rollout_keeps_the_log(
    app: App, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    app.append([*called("b", 10), *over(12)])
    close_sessions(app, at(13))
    app.append(called("late", 4))
    app.settle()
    kintsugi("log", "export", tmp_path / "kept")
    trimmed = kintsugi("log", "trim", "--archive", tmp_path / "kept", "--before", END, "--json")
    assert "sessions" in {one["kept_for"] for one in trimmed.json["partitions"]}
    assert close_sessions(app, at(13) + timedelta(days=1)).rollouts == 1


def test_what_was_closed_is_not_looked_at_again(app: App) -> None:
    """Of calls only the loose ones are gone through, and of ends those of their sessions."""
    app.append([*called("a", 0), *over(2)])
    close_sessions(app, at(3))
    with app.reading() as connection:
        plans = plans_of(connection)
        assert count_backlog(connection, at(3)) == 0
    steps = [step for plan in plans for step in plan.split("; ")]
    gone_through = [step for step in steps if step.startswith("SCAN") and "anon" not in step]
    assert gone_through == ["SCAN calls USING INDEX ix_calls_loose"] * len(gone_through)
    assert len(plans) == 2
