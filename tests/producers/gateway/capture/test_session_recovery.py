"""What is known again after a restart, from the records alone: the same as was known before it."""

import json
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from events.codec import encode
from events.envelope import Envelope, new_id
from events.log import now_ms
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    EventData,
    Outcome,
    SessionEnded,
)
from events.sqlite.log import SqliteLog
from producers.conversation import parse_messages
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.session_recovery import recover_sessions
from producers.gateway.capture.sessions import CallAttribution, Parent, SessionName, Sessions

SCOPE = ("agent", "rosa")
TOOLS = [{"type": "function", "function": {"name": "f"}}]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
CALLS = {
    "role": "assistant",
    "content": None,
    "refusal": None,
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "{}", "name": None}
ANSWER = {"role": "assistant", "content": "Done."}
NEXT = {"role": "user", "content": "And?"}
TURNS: tuple[tuple[list[Any], Any], ...] = (([SYSTEM, USER], CALLS), ([RESULT], ANSWER))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with closing(SqliteLog(tmp_path / "log.db")) as opened:
        yield opened


def append(log: SqliteLog, data: EventData, seconds_ago: float = 0) -> None:
    envelope = Envelope(id=new_id(), type=data.TYPE, version=1, subject=data.key(), person=SCOPE[1])
    log.append([encode(envelope, data, now_ms() - int(1000 * seconds_ago)).entry])


def call(
    log: SqliteLog,
    name: str,
    messages: Any,
    answer: Any = None,
    parent: Parent | None = None,
    session: str = "s",
    outcome: Outcome = "completed",
    tools: Any = TOOLS,
    seconds_ago: float = 60,
) -> None:
    """Append a call as the gateway does."""
    same = parent is not None and parent.same_tools
    content = CallStartContent(
        messages=parse_messages(messages), tools=() if same else tuple(tools)
    )
    append(
        log,
        CallStarted(
            call=name, session=session, alias="agent", base="b", policy="b", client=SCOPE[0],
            parent=parent.call if parent else None, parent_tools=same,
            parent_messages=parent.messages if parent else 0, content=content,
        ),
        seconds_ago,
    )  # fmt: skip
    if answer is not None:
        said = CallEndContent(messages=parse_messages([answer]))
        append(
            log, CallEnded(call=name, session=session, outcome=outcome, content=said), seconds_ago
        )


def talk(log: SqliteLog) -> None:
    """Two calls, the second stored as what the first did not hold."""
    call(log, "c1", TURNS[0][0], CALLS)
    call(log, "c2", [RESULT], ANSWER, Parent("c1", 3, same_tools=True))


def attributed(
    sessions: Sessions, *messages: Any, named: SessionName | None = None
) -> CallAttribution:
    return sessions.attribute(named, SCOPE, Conversation.of(messages, TOOLS), "fresh")


def test_an_unnamed_conversation_finds_its_session_and_its_parent(log: SqliteLog) -> None:
    talk(log)
    found = attributed(recover_sessions(log), SYSTEM, USER, CALLS, RESULT, ANSWER, NEXT)
    assert (found.session, found.by) == ("s", "prefix")
    assert found.parent == Parent("c2", 5, same_tools=True)


def test_a_call_is_known_by_its_name_and_by_its_request(log: SqliteLog) -> None:
    talk(log)
    sessions = recover_sessions(log)
    assert (sessions.session_of("c1"), sessions.session_of("c3")) == ("s", None)
    again = attributed(sessions, SYSTEM, USER, named=SessionName("s", "header"))
    assert again.parent == Parent("c1", 2, same_tools=True)


def test_other_words_another_user_and_other_tools_are_others(log: SqliteLog) -> None:
    talk(log)
    sessions = recover_sessions(log)
    assert attributed(sessions, SYSTEM, NEXT, CALLS, RESULT, ANSWER, NEXT).by == "none"
    conversation = Conversation.of([SYSTEM, USER, CALLS, RESULT, ANSWER, NEXT], [])
    assert sessions.attribute(None, ("agent", "ana"), conversation, "fresh").by == "none"
    found = sessions.attribute(None, SCOPE, conversation, "fresh")
    assert found.parent == Parent("c2", 5, same_tools=False)


def test_what_was_not_answered_whole_tells_no_session(log: SqliteLog) -> None:
    call(log, "c1", [USER], ANSWER, outcome="aborted")
    call(log, "c2", [NEXT])
    sessions = recover_sessions(log)
    assert attributed(sessions, USER, ANSWER, NEXT).by == "none"
    named = SessionName("s", "header")
    assert attributed(sessions, NEXT, ANSWER, named=named).parent == Parent("c2", 1, True)


@pytest.mark.parametrize("where", ["request", "answer", "arguments", "tools"])
def test_replaced_text_is_never_taken_for_what_was_said(log: SqliteLog, where: str) -> None:
    marked = "[redacted:email]"
    user: Any = {"role": "user", "content": marked if where == "request" else "Hi"}
    answer: Any = {"role": "assistant", "content": marked if where == "answer" else "Hello"}
    if where == "arguments":
        function = {"name": "f", "arguments": json.dumps({"to": marked})}
        answer["tool_calls"] = [{"id": "1", "function": function}]
    tools = [{"type": marked if where == "tools" else "function"}]
    call(log, "c1", [user], answer, tools=tools)
    call(log, "c2", [NEXT], ANSWER, Parent("c1", 2, same_tools=True))
    sessions = recover_sessions(log)
    whole = Conversation.of([user, answer, NEXT, ANSWER, NEXT], tools)
    found = sessions.attribute(None, SCOPE, whole, "fresh")
    assert (found.by, found.parent) == ("none", None)
    assert sessions.session_of("c2") == "s"


def test_a_parent_before_what_is_read_is_not_guessed(log: SqliteLog) -> None:
    talk(log)
    sessions = recover_sessions(log, most=2)
    assert attributed(sessions, SYSTEM, USER, CALLS, RESULT, ANSWER, NEXT).by == "none"
    assert (sessions.session_of("c1"), sessions.session_of("c2")) == (None, "s")


def test_it_ends_when_it_is_given_up_or_out_of_time(log: SqliteLog) -> None:
    talk(log)
    assert recover_sessions(log, given_up=lambda: True).session_of("c1") is None
    assert recover_sessions(log, seconds=-1).session_of("c1") is None


def test_what_became_known_meanwhile_is_newer() -> None:
    earlier, now = Sessions(3), Sessions(3)
    for number in range(3):
        earlier.remember_call(f"c{number}", "old")
    now.remember_call("c0", "new")
    now.recall(earlier)
    assert (now.session_of("c0"), now.session_of("c2")) == ("new", "old")
    now.remember_call("c3", "new")
    assert now.session_of("c1") is None, "the oldest goes first"
    assert now.session_of("c0") == "new"


def test_it_is_what_a_gateway_knew_that_was_never_restarted(log: SqliteLog) -> None:
    """Conversations that branch, retell and use tools, told to both; many are alike."""
    chance, before = random.Random(6), Sessions()
    told: list[tuple[list[Any], str]] = []
    for number in range(150):
        history, _ = chance.choice(told) if told and chance.random() < 0.8 else ([SYSTEM], "")
        messages = [*history, {"role": "user", "content": chance.choice("abc"), "name": None}]
        conversation = Conversation.of(messages, TOOLS)
        found = before.attribute(None, SCOPE, conversation, f"s{number}")
        answer: dict[str, Any] = chance.choice(
            [CALLS, ANSWER, {"role": "assistant", "content": f"{number % 7}"}]
        )
        known = found.parent.messages if found.parent else 0
        call(log, f"c{number}", messages[known:], answer, found.parent, found.session)
        before.remember_call(f"c{number}", found.session)
        before.remember_request(found.session, f"c{number}", conversation)
        heard = conversation.digest_answer(answer)
        before.remember_answer(found.session, f"c{number}", SCOPE, conversation, heard)
        before.settle(found.claim, completed=True)
        told.append(([*messages, answer], found.session))
    # Long enough before the end for every answer to have been heard.
    append(log, SessionEnded(session="elsewhere", because="asked"))
    after, ways = recover_sessions(log), set[str]()
    for history, _ in told:
        found = attributed(after, *history, NEXT)
        assert found == attributed(before, *history, NEXT)
        ways.add(found.by)
    assert ways == {"prefix", "none"}


def test_an_answer_right_before_the_end_may_not_have_been_heard(log: SqliteLog) -> None:
    for name in "ab":
        call(log, f"{name}1", [USER], ANSWER, session=name)
    call(log, "a2", [NEXT], ANSWER, Parent("a1", 2, same_tools=True), session="a", seconds_ago=1)
    after = recover_sessions(log)
    assert attributed(after, USER, ANSWER, NEXT).by == "none", "the same again, or the other's"
    assert attributed(after, USER, ANSWER, NEXT, ANSWER, NEXT).session == "a"
    after = recover_sessions(log)
    found = attributed(after, USER, ANSWER, NEXT, ANSWER, NEXT)
    after.settle(found.claim, completed=True)
    assert attributed(after, USER, ANSWER, NEXT).session == "b", "it was heard"


def test_a_call_that_its_gateway_did_not_outlive_continues_nothing(log: SqliteLog) -> None:
    for name in "ab":
        call(log, f"{name}1", [USER], ANSWER, session=name)
    call(log, "a2", [NEXT], None, Parent("a1", 2, same_tools=True), session="a")
    assert attributed(recover_sessions(log), USER, ANSWER, NEXT).by == "none"


def test_what_was_cut_off_makes_the_same_answer_doubtful(log: SqliteLog) -> None:
    call(log, "a1", [USER], ANSWER, session="a")
    assert attributed(recover_sessions(log), USER, ANSWER, NEXT).session == "a"
    call(log, "b1", [USER], ANSWER, session="b", outcome="aborted")
    assert attributed(recover_sessions(log), USER, ANSWER, NEXT).by == "none"


def test_a_conversation_that_its_client_ended_is_not_meant(log: SqliteLog) -> None:
    for name in "ab":
        call(log, f"{name}1", [USER], ANSWER, session=name)
    append(log, SessionEnded(session="a", because="idle"))
    assert attributed(recover_sessions(log), USER, ANSWER, NEXT).by == "none", (
        "who idled may come back"
    )
    assert attributed(recover_sessions(log), USER, ANSWER, NEXT, ANSWER, NEXT).by == "none"
    call(log, "a2", [NEXT], ANSWER, Parent("a1", 2, same_tools=True), session="a")
    append(log, SessionEnded(session="elsewhere", because="asked"))
    assert attributed(recover_sessions(log), USER, ANSWER, NEXT).session == "b"
    append(log, SessionEnded(session="b", because="asked"))
    assert attributed(recover_sessions(log), USER, ANSWER, NEXT).by == "none"


@pytest.mark.parametrize(("hours", "by"), [(0.1, "none"), (2, "prefix")])
def test_who_may_have_said_the_same_before_what_is_read_makes_it_doubtful(
    log: SqliteLog, hours: float, by: str
) -> None:
    """Of two that are alike, the partition of the first was busier."""
    then = 3600 * hours
    call(log, "a1", [USER], ANSWER, session="a", seconds_ago=then + 60)
    busy = next(n for n, end in enumerate(log.end("rollouts")) if end)
    for number in range(8):
        call(log, f"n{number}", [NEXT], ANSWER, session="a", seconds_ago=then)
    quiet = next(name for name in "bcdefgh" if partition_of(log, name, then) != busy)
    after = recover_sessions(log, most=10)
    found = attributed(after, USER, {"role": "assistant", "content": quiet}, NEXT)
    assert found.by == by
    named = attributed(after, NEXT, ANSWER, NEXT, named=SessionName("a", "header"))
    assert named.parent is not None


def partition_of(log: SqliteLog, session: str, seconds_ago: float) -> int:
    """Append a call that is answered with its session's name; where it is."""
    before = log.end("rollouts")
    answer = {"role": "assistant", "content": session}
    call(log, session, [USER], answer, session=session, seconds_ago=seconds_ago)
    return next(n for n, end in enumerate(log.end("rollouts")) if end > before[n])


def test_a_log_that_was_not_read_to_its_end_makes_all_doubtful(log: SqliteLog) -> None:
    call(log, "a1", [USER], ANSWER, session="a")
    call(log, "b1", [USER], ANSWER, session="b")
    polls = iter((False, False, True))
    after = recover_sessions(log, given_up=lambda: next(polls))
    assert attributed(after, USER, ANSWER, NEXT).by == "none"
