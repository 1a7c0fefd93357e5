"""Sessions that cannot become rollouts, among three times as many good ones. Passes when every good
session is a rollout, and each bad session is one dead letter with the expected error. A file that a
client named must not run. Further rounds must append nothing, and a bad session must not stop the
others of its round. The tables must equal a rebuild. Then the persons' keys come back, and
`kintsugi dlq retry` makes rollouts of the sessions that lacked a key, and of no other.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from consumers.reads import rollouts as reads
from daemon.config.settings import Environments, Log, Settings
from daemon.core.app import App
from daemon.maintenance.dead_letters import attempt
from daemon.roles.worker import Worker
from daemon.serving.fleet import open_fleet
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
from ops.command_line import run_command

START: Final = utc_now() - timedelta(days=2)
LARGE: Final = 1_000_000
BROKEN: Final = "broken"
ROUNDS: Final = 3


def at(second: int) -> datetime:
    """Return a time `second` seconds after START."""
    return START + timedelta(seconds=second)


class Talk:
    """Makes the events of one session."""

    def __init__(self, app: App, session: str, person: str | None = None) -> None:
        self._app, self._session, self._person = app, session, person
        self.blobs: list[str] = []

    def entry(self, data: EventData, second: int) -> Entry:
        """Return an event, sealed if the session is a person's."""
        envelope = Envelope(
            new_id(), data.TYPE, data.VERSION, data.key(), at(second), person=self._person
        )
        key = None if self._person is None else self._app.keys.of(self._person)
        encoded = encode(envelope, data, now_ms(), owner=key)
        if encoded.blob is not None:
            self.blobs.append(self._app.blobs.put(encoded.blob))
        return encoded.entry

    def call(self, name: str, second: int, words: str = "hello", **options: Any) -> list[Entry]:
        """Return the events of an answered call."""
        content = CallStartContent(messages=(Message(role="user", content=words),))
        answer = CallEndContent(messages=(Message(role="assistant", content="yes"),))
        started = CallStarted(
            call=f"{self._session}/{name}", session=self._session, alias="agent", base="base",
            policy="base", **{"content": content, **options},
        )  # fmt: skip
        ended = CallEnded(
            call=f"{self._session}/{name}", session=self._session, outcome="completed",
            finish_reason="stop", content=answer,
        )  # fmt: skip
        return [self.entry(started, second), self.entry(ended, second + 1)]

    def over(self, second: int) -> list[Entry]:
        """Return the end of the session."""
        return [self.entry(SessionEnded(session=self._session, because="asked"), second)]


def good(app: App, name: str, second: int = 0, **options: Any) -> list[Entry]:
    """Return the events of a session with one answered call."""
    talk = Talk(app, name)
    return [*talk.call("a", second, **options), *talk.over(second + 5)]


def incomplete(app: App, name: str) -> list[Entry]:
    """Return the events of a session that continues a call which was not recorded."""
    return good(app, name, parent="nowhere", parent_messages=2)


def circular(app: App, name: str) -> list[Entry]:
    """Return the events of a session whose call names itself as its parent."""
    return good(app, name, parent=f"{name}/a", parent_messages=1)


def session_without_blob(app: App, name: str) -> list[Entry]:
    """Return the events of a session whose words are in a deleted blob."""
    talk = Talk(app, name)
    entries = [*talk.call("a", 0, noise(LARGE, name)), *talk.over(5)]
    for digest in talk.blobs:
        (app.home / "blobs" / digest[:2] / digest).unlink()
    return entries


def session_without_key(app: App, name: str) -> list[Entry]:
    """Return the events of a person's session whose key is gone without an erasure."""
    talk = Talk(app, name, person=name)
    entries = [*talk.call("a", 0), *talk.over(5)]
    key = app.keys.find_in_store(name)
    assert key is not None, "the session was sealed with it"
    app.keys.destroy(key.id)
    return entries


def too_large(app: App, name: str) -> list[Entry]:
    """Return the events of a session whose tool names are too large for a record or a blob."""
    tools = tuple(
        {"type": "function", "function": {"name": noise(60_000, f"{name} {number}")}}
        for number in range(20)
    )
    return good(app, name, content=CallStartContent(tools=tools))


def session_with_bad_environment(app: App, name: str) -> list[Entry]:
    """Return the events of a session on a task of an environment that fails to import."""
    return good(app, name, task=f"{BROKEN}/read/1")


KINDS: Final[dict[Callable[[App, str], list[Entry]], str]] = {
    incomplete: "SessionIncomplete",
    circular: "SessionIncomplete",
    session_without_blob: "BlobError",
    session_without_key: "KeyMissing",
    too_large: "TooLarge",
    session_with_bad_environment: "EnvironmentBroken",
}
"""Function that makes a bad session -> class of the error in its dead letter."""


def noise(length: int, seed: str) -> str:
    """Return `length` random characters, which hardly compress."""
    return "".join(Random(seed).choices(_ALPHABET, k=length))


_ALPHABET: Final = [chr(code) for code in range(0x4E00, 0x9FFF)]


def restore(app: App, key: Key) -> None:
    """Put a key back, as a restored backup of the key store does."""
    with closing(sqlite3.connect(app.home / "keys.db")) as connection, connection:
        connection.execute(
            "INSERT INTO person_keys (keyid, person, secret) VALUES (?, ?, ?)",
            (key.id, key.person, key.secret),
        )


def run(count: int, folder: Path) -> dict[str, Any]:
    """Close `count` bad sessions among good ones, and return the driver's result."""
    file, mark = folder / "broken.py", folder / "ran"
    file.write_text("raise RuntimeError('half of it is written')\n")
    theirs = folder / "theirs.py"
    theirs.write_text(f"open({str(mark)!r}, 'w').close()\n")
    settings = Settings(
        home=folder / "home",
        log=Log(durability="process"),
        environments=Environments(paths=(file,)),
    )
    with App(settings) as app, open_fleet(app.settings) as fleet:
        poisoned, keys = _poison(app, count)
        app.append(
            [entry for place in range(3 * count) for entry in good(app, f"good {place}", place)]
        )
        # A good session whose task is a path must run no code, and has no verdict.
        app.append(good(app, "visitor", task=str(theirs)))
        worker = Worker(app, fleet)
        rounds = [worker.work() for _ in range(ROUNDS)]
        worker.close()
        with app.reading() as connection:
            letters = reads.dead_letters(connection)
            rollouts = reads.count_backlog(connection).rollouts
        ends = app.log.end("rollouts")
        for key in keys:
            restore(app, key)
        mended = [attempt(letter, app) for letter in letters]
        app.settle()
        with app.reading() as connection:
            left = reads.dead_letters(connection)
    errors = sorted(error for done in rounds for error in done.set_aside)
    passed = (
        rollouts == 3 * count + 1 == rounds[0].rollouts
        and errors == sorted(KINDS[kind] for kind in poisoned)
        and len(letters) == count
        and not any(done.failed or done.rollouts or done.set_aside for done in rounds[1:])
        and sum(ends) == _events(count, poisoned)
        and sum(result.recorded for result in mended) == len(keys) == count - len(left)
        and not mark.exists()
    )
    return {
        "passed": passed, "rollouts": rollouts, "dead_letters": len(letters),
        "mended": sum(result.recorded for result in mended), "foreign_code": mark.exists(),
        "failed_parts": [part for done in rounds for part in done.failed],
    }  # fmt: skip


def _poison(app: App, count: int) -> tuple[list[Callable[[App, str], list[Entry]]], list[Key]]:
    """Append `count` bad sessions. Return their kinds, and the keys that some of them lack."""
    kinds, keys = list(KINDS), list[Key]()
    poisoned = [kinds[place % len(kinds)] for place in range(count)]
    for place, kind in enumerate(poisoned):
        name = f"bad {place}"
        if kind is session_without_key:
            keys.append(app.keys.of(name))
        app.append(kind(app, name))
    return poisoned, keys


def _events(count: int, poisoned: list[Any]) -> int:
    return 4 * (len(poisoned) + 3 * count + 1)


if __name__ == "__main__":
    run_command(__doc__, run, count=120)
