"""A person talks to a real gateway, is learnt from, and is erased: no byte of it is left."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zstandard

from consumers.database import sqlite_url
from daemon.config.settings import load
from daemon.core.app import App
from envs.shop.environment import Shop
from events.blobs import BlobStore
from events.codec import encode
from events.envelope import Envelope, derive_id, utc_now
from events.learning import Decision, Directive, DirectiveWritten, Quota
from events.messages import Message
from events.privacy.keys import KeyStore
from events.rollouts import (
    NOBODY,
    CallStartContent,
    CallStarted,
    Labels,
    RolloutContent,
    RolloutEnded,
    SessionEnded,
)
from events.serving import AdapterProduced
from producers.gateway.capture.recorder import About, Recorder
from producers.gateway.privacy.keys import ClientKey, hash_key
from tests.consumers.cycling import PATTERN, cycle_id, job_over, requested, started
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.engine.conftest import Live, Recite
from tests.daemon.gateway.conftest import Fronted, fronting
from tests.daemon.gateway.test_rollouts import shown as shown_rollouts

__all__ = ["clean", "home", "kintsugi"]

MARK = "elmstreet"
NO_LABELS = Labels(
    messages=0, tool_calls=0, tool_errors=0, malformed_calls=0, loops=0, pivot="", trace_key=""
)
ROSA = "rosa.lindqvist"
"""A person; long enough that no sealed bytes hold the name by chance."""
ANSWER = "waxfjordbunk"
"""What the model says to everything; no letter of it twice, as the model needs it."""
KEYS = [ClientKey("grader", hash_key("k"), frozenset(("call", "trusted", "feedback")))]
KEYED = {"authorization": "Bearer k"}
_FRAME = b"\x28\xb5\x2f\xfd"
"""How zstd begins."""


def showing(folder: Path, *marks: str) -> list[str]:
    """Files that hold a mark, as it is or compressed."""
    found: list[str] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        held = path.read_bytes()
        texts = [held, *_inflated(held)]
        found += [path.name for mark in marks if any(mark.encode() in text for text in texts)]
    return found


def _inflated(held: bytes) -> Iterator[bytes]:
    at = held.find(_FRAME)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(held[at:])
        at = held.find(_FRAME, at + 1)


def talk(front: Fronted, person: str, task: str, retry: str | None = None) -> httpx2.Response:
    """A person says something, is answered, and says how it was."""
    headers = {**KEYED, "x-kintsugi-user": person, "x-kintsugi-session": f"of-{len(person)}"}
    keyed = {} if retry is None else {"idempotency-key": retry}
    body = {
        "messages": [{"role": "user", "content": f"I am {person}, I live in {MARK}"}],
        "max_tokens": 24,
        "stop": [f"stop-{MARK}"],
        "tools": [{"type": "function", "function": {"name": f"tool_of_{MARK}"}}],
    }
    answer = httpx2.post(
        f"{front.url}/v1/chat/completions", json=body, timeout=60,
        headers={**headers, **keyed, "x-kintsugi-task": task},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return answer


def ask_for_a_model_that_is_not_there(front: Fronted, person: str) -> None:
    """A person's client puts what they said into the name of the model."""
    headers = {**KEYED, "x-kintsugi-user": person, "x-kintsugi-session": f"of-{len(person)}"}
    body = {"messages": [{"role": "user", "content": "Hello"}], "model": f"model-{MARK}"}
    url = f"{front.url}/v1/chat/completions"
    assert httpx2.post(url, json=body, headers=headers, timeout=60).status_code == 404


def say_how_it_was(front: Fronted, person: str) -> None:
    """Feedback, which ends the session."""
    given = {"session": f"of-{len(person)}", "score": 1, "comment": MARK, "tags": [MARK]}
    headers = {**KEYED, "x-kintsugi-user": person}
    posted = httpx2.post(f"{front.url}/v1/feedback", json=given, headers=headers)
    assert posted.status_code == 200, posted.text


def say_much(home: Path, people: KeyStore, person: str) -> None:
    """What is too much for a record, and goes into a blob."""
    text = MARK + random.Random(1).randbytes(1_200_000).hex()
    call = CallStarted(
        call="big", session="big", alias="agent", base="tiny", policy="tiny",
        content=CallStartContent(messages=(Message(role="user", content=text),)),
    )  # fmt: skip
    with App(load()) as app:
        recorder = Recorder(app.spool, BlobStore(home / "blobs"), people)
        for data in (call, SessionEnded(session="big", because="asked")):
            asyncio.run(recorder.append(data, About(person)))


def learn_from(rollout: str) -> None:
    """A cycle that names the rollout, its job, and the adapter that came of it."""
    quota = Quota(pattern=PATTERN, tasks=1, priority=0.5, status="NEW", examples=(rollout,))
    directive = DirectiveWritten(cycle=cycle_id(), round=0, directive=Directive(quotas=(quota,)))
    job = derive_id("job", cycle_id())
    adapter = AdapterProduced(
        adapter="learnt-1", alias="agent", base="base", sha256="0" * 64, path="/adapters/learnt-1",
        job=job, origin="job",
    )  # fmt: skip
    steps: tuple[Decision, ...] = (started(), directive, requested(), job_over(), adapter)
    with App(load()) as app:
        for number, data in enumerate(steps):
            envelope = Envelope(
                id=derive_id("test", str(number)), type=data.TYPE, version=data.VERSION,
                subject=data.key(), time=utc_now(),
            )  # fmt: skip
            app.append([encode(envelope, data, 1).entry])


def shown(kintsugi: Kintsugi, session: str) -> dict[str, Any]:
    """The rollout of a session, whole."""
    with App(load()) as app, app.reading() as connection:
        rows = connection.exec_driver_sql("SELECT rollout, session FROM rollouts").all()
    by_session = {row.session: row.rollout for row in rows}
    (one,) = [one for one in shown_rollouts(kintsugi) if one["rollout"] == by_session[session]]
    return dict(one)


def test_an_erased_person_is_in_no_byte_of_the_home(
    recite: Recite, home: Path, kintsugi: Kintsugi
) -> None:
    home.mkdir()
    people = KeyStore(sqlite_url(home / "keys.db"))
    engine, task = recite(ANSWER), next(iter(Shop().tasks())).id
    with fronting(home, [engine.url], keys=KEYS, people=people) as front:
        for person in (ROSA, "another"):
            first = talk(front, person, task, retry="again")
            assert talk(front, person, task, retry="again").headers["x-kintsugi-replayed"] == "yes"
            assert ANSWER in first.text
            ask_for_a_model_that_is_not_there(front, person)
            say_how_it_was(front, person)
    say_much(home, people, ROSA)
    assert kintsugi("work", "--once").json["rollouts"] == 3
    kintsugi("diagnose")
    before = shown(kintsugi, "of-14")
    assert MARK in json.dumps(before["messages"][0])
    assert ANSWER in json.dumps(before["messages"][1])
    assert (before["success"], before["category"] is None) == (False, False)
    assert before["evidence"], "it is found again where the key is"
    learn_from(before["rollout"])
    assert showing(home, MARK, "of-14")  # the session's name: what a client chose stands there
    assert showing(home, MARK, ANSWER) == []
    assert showing(home, ROSA) == ["keys.db"]
    patterns = kintsugi("patterns", "--json").json
    assert kintsugi("rebuild", "--json").json["equal"] is True

    looked = kintsugi("erase", "--person", ROSA, "--dry-run", "--json").json
    # 4 x call, feedback, session, rollout; and the large call, its session and rollout.
    assert (looked["erased"], looked["events"], looked["rollouts"]) == (False, 10, 2)
    refused = kintsugi("erase", "--person", ROSA, "--json")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    done = kintsugi("erase", "--person", ROSA, "--yes", "--json")
    assert done.code == 0, done.err
    assert {**looked, "erased": True, "dry_run": False} == done.json
    (adapter,) = done.json["adapters"]
    assert (adapter["adapter"], adapter["because"]) == ("learnt-1", ["example"])
    again = kintsugi("erase", "--person", ROSA, "--yes", "--json")
    assert (again.code, again.json["erased"], again.json["events"]) == (0, False, 0)

    assert showing(home, MARK, ANSWER, ROSA) == []
    assert looked["key"].encode() not in (home / "keys.db").read_bytes()
    live = kintsugi("rebuild", "--json").json
    assert live["equal"] is True
    after = shown(kintsugi, "of-14")
    assert (after["messages"], after["erased"], after["evidence"]) == ([], True, None)
    assert after["category"] == before["category"]
    assert kintsugi("patterns", "--json").json == patterns
    assert MARK in json.dumps(shown(kintsugi, "of-7")["messages"]), "another's is still theirs"
    assert kintsugi("log", "verify", "--json").json["ok"] is True
    people.close()
    # Another process: the one before may use the key that it looked up for some seconds more.
    people = KeyStore(sqlite_url(home / "keys.db"))
    with fronting(home, [engine.url], keys=KEYS, people=people) as front:
        anew = talk(front, ROSA, task, retry="again")
    assert "x-kintsugi-replayed" not in anew.headers
    fresh = people.find_in_store(ROSA)
    people.close()
    assert fresh is not None
    assert fresh.id != looked["key"], "who comes back is somebody new"


def test_names_that_earlier_versions_left_readable_are_counted(
    home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    people = KeyStore(sqlite_url(home / "keys.db"))
    say_much(home, people, ROSA)
    assert kintsugi("erase", "--person", ROSA, "--dry-run", "--json").json["readable_names"] == 0
    call = CallStarted(
        call="old", session="old", alias="agent", base=NOBODY, policy=MARK,
        content=CallStartContent(messages=(Message(role="user", content="Hello"),)),
    )  # fmt: skip
    rollout = RolloutEnded(
        rollout="old", alias="agent", base="tiny", policy="tiny", source="live",
        known_tools=(MARK,), labels=NO_LABELS, content=RolloutContent(),
    )  # fmt: skip
    with monkeypatch.context() as earlier, App(load()) as app:
        earlier.setattr(RolloutEnded, "PRIVATE", ("reason",))
        recorder = Recorder(app.spool, BlobStore(home / "blobs"), people)
        for data in (call, rollout):
            asyncio.run(recorder.append(data, About(ROSA)))
    people.close()
    done = kintsugi("erase", "--person", ROSA, "--yes", "--json")
    assert (done.code, done.json["readable_names"]) == (3, 2)


def test_without_sealing_the_same_words_are_found(
    recite: Recite, home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search above can fail; and what was never sealed is counted and named."""
    home.mkdir()
    monkeypatch.setenv("KINTSUGI_PRIVACY__SEAL", "false")
    with fronting(home, [recite(ANSWER).url], keys=KEYS) as front:
        talk(front, ROSA, next(iter(Shop().tasks())).id)
        say_how_it_was(front, ROSA)
    assert kintsugi("work", "--once").json["rollouts"] == 1
    assert {"log.db", "kintsugi.db"} <= set(showing(home, MARK))
    assert "log.db" in showing(home, ANSWER)
    done = kintsugi("erase", "--person", ROSA, "--yes", "--json")
    assert (done.code, done.json["erased"], done.json["unsealed"]) == (3, False, 5)
    assert "5 events" in done.json["limits"][-1]


@pytest.fixture(autouse=True)
def _home(home: Path) -> Path:
    """Commands and gateway share the home."""
    return home


def test_a_gateway_that_was_restarted_goes_on_with_a_sealed_session(
    live: Live, tmp_path: Path
) -> None:
    people = KeyStore(sqlite_url(tmp_path / "keys.db"))
    said: list[dict[str, Any]] = [{"role": "user", "content": "One"}]
    headers = {"x-kintsugi-user": ROSA}
    for _ in range(2):
        with fronting(tmp_path, [live.url], people=people) as front:
            body = {"messages": said, "max_tokens": 4}
            answer = httpx2.post(
                f"{front.url}/v1/chat/completions", json=body, headers=headers, timeout=60
            )
            said += [answer.json()["choices"][0]["message"], {"role": "user", "content": "Two"}]
            parents = [call.parent for call in front.started()]
    people.close()
    assert (len(parents), parents[0], parents[1] is None) == (2, None, False)
