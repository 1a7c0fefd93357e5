"""An erasure that was cut short, keys that come back, keys that are lost, and the broker."""

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumers.database import sqlite_url
from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.broker import ship
from daemon.status.doctor.records import keys as examined_keys
from events.blobs import BlobStore
from events.bodies import Bodies
from events.kafka.log import KafkaLog
from events.log import Record
from events.messages import Message
from events.privacy.keys import KeyStore
from events.privacy.sealing import Key
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    SessionEnded,
)
from events.streams import ROLLOUTS
from producers.gateway.capture.recorder import About, Recorder
from tests.daemon.commands import environment
from tests.daemon.conftest import Kintsugi

CUT_SHORT = """
import os, signal
from daemon.maintenance import erasure
from daemon.core.app import App
from daemon.config.settings import load

with App(load()) as app:
    held = erasure.look(app, "rosa")
    erasure.announce(app, held)
    if {destroyed}:
        app.keys.destroy(held.keyid)
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def _talk(recorder: Recorder, person: str, session: str) -> None:
    started = CallStarted(
        call=f"c-{session}", session=session, alias="agent", base="tiny", policy="tiny",
        content=CallStartContent(messages=(Message(role="user", content=f"I am {person}"),)),
    )  # fmt: skip
    ended = CallEnded(
        call=f"c-{session}", session=session, outcome="completed",
        content=CallEndContent(messages=(Message(role="assistant", content="Hello"),)),
    )  # fmt: skip
    for data in (started, ended, SessionEnded(session=session, because="asked")):
        await recorder.append(data, About(person))


def talk(*persons: str) -> None:
    """A session of each person, recorded as a gateway does."""
    with App(load()) as app:
        recorder = Recorder(app.spool, app.blobs, app.keys)
        for person in persons:
            asyncio.run(_talk(recorder, person, f"s-{person[::-1]}"))


def keys_of(home: Path) -> frozenset[str]:
    store = KeyStore(sqlite_url(home / "keys.db"))
    try:
        return store.ids()
    finally:
        store.close()


def said(kintsugi: Kintsugi) -> list[tuple[int, bool]]:
    """(messages, erased) of each rollout."""
    listed = kintsugi("rollouts", "ls", "--json").json
    found = [kintsugi("rollouts", "show", one["rollout"], "--json").json for one in listed]
    return sorted((len(one["messages"]), one["erased"]) for one in found)


@pytest.fixture
def talked(home: Path, kintsugi: Kintsugi) -> Path:
    """A home in which two persons' sessions are rollouts."""
    talk("rosa", "otto")
    assert kintsugi("work", "--once").json["rollouts"] == 2
    assert said(kintsugi) == [(2, False), (2, False)]
    return home


@pytest.mark.parametrize("destroyed", [False, True], ids=["announced", "destroyed"])
def test_an_erasure_that_was_killed_is_finished_by_the_same_command(
    talked: Path, kintsugi: Kintsugi, destroyed: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CUT_SHORT.format(destroyed=destroyed)],
        cwd=Path(__file__).parents[3], env=environment(KINTSUGI_HOME=str(talked)), check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert len(keys_of(talked)) == (1 if destroyed else 2)
    again = kintsugi("erase", "--person", "rosa", "--yes", "--json")
    assert (again.code, again.json["erased"]) == (0, not destroyed)
    assert len(keys_of(talked)) == 1
    assert said(kintsugi) == [(0, True), (2, False)]
    assert kintsugi("rebuild", "--json").json["equal"] is True
    events = [line["type"] for line in kintsugi("log", "cat", "learning", "--json").lines]
    assert events.count("PersonErased") == 1


def test_a_restored_backup_of_the_keys_resurrects_nobody(talked: Path, kintsugi: Kintsugi) -> None:
    shutil.copy(talked / "keys.db", talked / "backup.db")
    assert kintsugi("erase", "--person", "rosa", "--yes").code == 0
    shutil.copy(talked / "backup.db", talked / "keys.db")
    assert len(keys_of(talked)) == 2
    assert said(kintsugi) == [(0, True), (2, False)]
    assert kintsugi("work", "--once").code == 0
    assert len(keys_of(talked)) == 1
    assert said(kintsugi) == [(0, True), (2, False)]


def test_a_lost_key_is_named_and_can_be_given_up(talked: Path, kintsugi: Kintsugi) -> None:
    with App(load()) as app:
        lost = app.keys.of("rosa")
        app.keys.destroy(lost.id)
    found = kintsugi("log", "verify", "--json").json
    assert (found["ok"], len(found["problems"])) == (False, 3)
    assert f"kintsugi erase --key {lost.id}" in found["problems"][0]
    assert kintsugi("erase", "--key", lost.id, "--yes", "--json").json["erased"] is True
    assert kintsugi("log", "verify", "--json").json["ok"] is True
    assert said(kintsugi) == [(0, True), (2, False)]


def test_nothing_is_said_to_be_erased_that_nobody_could_have(
    talked: Path, kintsugi: Kintsugi
) -> None:
    for name in ("", "a b", "rosé", "x" * 257):
        refused = kintsugi("erase", "--person", name, "--yes")
        assert (refused.code, "--person" in refused.err, refused.out) == (2, True, "")
    mistyped = kintsugi("erase", "--key", "nobodys-key", "--yes")
    assert (mistyped.code, "'nobodys-key'" in mistyped.err, mistyped.out) == (1, True, "")
    assert kintsugi("log", "stats", "--json").json["streams"]["learning"]["events"] == 0
    assert len(keys_of(talked)) == 2


def test_an_erasure_after_a_trim_says_what_it_did_not_count(
    talked: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    with App(load()) as app:
        ends = app.spool.end("rollouts")
        for partition, end in enumerate(ends):
            app.spool.trim("rollouts", partition, end)
    found = kintsugi("erase", "--person", "rosa", "--dry-run", "--json").json
    assert found["events"] == 0
    assert f"{sum(ends)} events were trimmed from the log" in found["limits"][-1]
    done = kintsugi("erase", "--person", "rosa", "--yes")
    assert (done.code, "were trimmed from the log" in done.err) == (0, True)
    assert len(keys_of(talked)) == 1


def test_keys_that_are_lost_are_found_before_somebody_reads(
    talked: Path, kintsugi: Kintsugi
) -> None:
    with App(load()) as app:
        assert examined_keys(app)[0]
    (talked / "keys.db").rename(talked / "elsewhere.db")
    with App(load()) as app:
        ok, detail = examined_keys(app)
    assert (ok, detail.startswith("2 keys of what was said last are not there")) == (False, True)
    (talked / "elsewhere.db").rename(talked / "keys.db")
    assert kintsugi("erase", "--person", "rosa", "--yes").code == 0
    with App(load()) as app:
        assert examined_keys(app) == (True, "1 keys, in this home, for this machine alone")


def test_a_session_of_an_erased_person_becomes_a_rollout_without_words(
    home: Path, kintsugi: Kintsugi
) -> None:
    talk("rosa")
    assert kintsugi("erase", "--person", "rosa", "--yes", "--json").json["events"] == 3
    assert kintsugi("work", "--once").json["rollouts"] == 1
    (rollout,) = kintsugi("rollouts", "ls", "--json").json
    assert (rollout["success"], rollout["category"]) == (None, None)
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_keys_are_kept_apart_from_the_tables(
    home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_PRIVACY__KEYS_URL", sqlite_url(home / "kintsugi.db"))
    refused = kintsugi("erase", "--person", "rosa", "--yes")
    assert (refused.code, "privacy.keys_url is database_url" in refused.err) == (2, True)
    neither = kintsugi("erase", "--yes")
    assert (neither.code, "--person or --key" in neither.err) == (2, True)


@pytest.mark.kafka
def test_on_the_broker_only_ciphertext_stays(home: Path, kafka_log: KafkaLog) -> None:
    talk("rosa")
    with App(load()) as app:
        ship(app.spool, kafka_log)
        key = app.keys.of("rosa")

        def read(*keys: Key) -> list[bool]:
            bodies = Bodies(BlobStore(home / "blobs"), {one.id: one for one in keys}.get)
            return [bodies.whole(record).is_unreadable for record in records]

        records: list[Record] = [
            record
            for partition, end in enumerate(kafka_log.end(ROLLOUTS.name))
            if end
            for record in kafka_log.read(ROLLOUTS.name, partition, 0)
        ]
    assert [dict(one.headers)["ce_keyid"].decode() for one in records] == [key.id] * 3
    assert read(key) == [False, False, False]
    # The session's end says nothing, so nothing of it is sealed.
    assert read() == [True, True, False]
    assert not any(b"rosa" in one.value + repr(one.headers).encode() for one in records)
