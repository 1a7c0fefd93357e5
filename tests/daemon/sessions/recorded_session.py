"""A transcript as the calls of a live session: what a gateway records of a client that plays it."""

from collections.abc import Sequence
from datetime import timedelta

from events.codec import encode
from events.envelope import Envelope, new_id, utc_now
from events.log import Entry, now_ms
from events.messages import Message
from events.privacy.sealing import Key
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    EventData,
    SessionEnded,
)

START = utc_now() - timedelta(days=2)


def record_session(
    messages: Sequence[Message],
    task: str,
    system: str,
    tokens: Sequence[int | None],
    session: str = "talk",
    person: str | None = None,
    key: Key | None = None,
) -> list[Entry]:
    """The events of a session; `tokens` are those of each answer of the agent, in order, `key` is
    what the events of `person` are sealed with."""
    whole = [Message(role="system", content=system), *map(_strip, messages)]
    answers = [
        place for place, message in enumerate(messages, start=1)
        if message.role == "assistant" and message.sampled is not False
    ]  # fmt: skip
    events: list[EventData] = []
    done, parent = 0, None
    for number, (place, written) in enumerate(zip(answers, tokens, strict=True)):
        call = f"{session}-{number}"
        events.append(
            CallStarted(
                call=call, session=session, alias="agent", base="base", policy="base", task=task,
                parent=parent, parent_messages=done,
                content=CallStartContent(messages=tuple(whole[done:place])),
            )
        )  # fmt: skip
        events.append(
            CallEnded(
                call=call, session=session, outcome="completed", finish_reason="stop",
                completion_tokens=written, content=CallEndContent(messages=(whole[place],)),
            )
        )  # fmt: skip
        done, parent = place + 1, call
    events.append(SessionEnded(session=session, because="asked"))
    return [_encode(data, second, person, key) for second, data in enumerate(events)]


def _strip(message: Message) -> Message:
    """What a client sends: it has no flag that says whether a tool failed, or who wrote it."""
    return message.model_copy(update={"error": None, "sampled": None})


def _encode(data: EventData, second: int, person: str | None, key: Key | None) -> Entry:
    time = START + timedelta(seconds=second)
    envelope = Envelope(new_id(), data.TYPE, data.VERSION, data.key(), time, person=person)
    return encode(envelope, data, now_ms(), owner=key).entry
