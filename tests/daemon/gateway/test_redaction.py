"""Nothing that is stored in a home holds what a rule matches, and clients get all of it.

Secrets are planted wherever a client or an engine can say something. Then every file of the home is
read: its raw bytes, every event and blob decoded, every token array through the tokenizer, every
receipt and every row of every table. The same reading finds each of them where there are no rules.
"""

import base64
import json
import logging
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
import zstandard
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.roles.gateway import RedactingFormatter, salt
from events.blobs import BlobStore
from events.codec import arrays_of, attach, decode
from events.errors import LogCorrupt
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from ops.reciting_model import reciting
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.privacy.rules import BuiltIn, find_builtin, own
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.gateway.conftest import Fronted, fronting

__all__ = ["clean", "home", "kintsugi"]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MAIL = "jumpyfox@dwv.kz"
"""Its letters are all different, so a model can learn it by heart."""
CARD, NUMBER = "4111 1111 1111 1111", "5500005555555559"
IBAN, KEY, ORDER = "DE89 3704 0044 0532 0130 00", "sk-planted0123456789abc", "ORD-778899"
SECRETS = (MAIL, CARD, NUMBER, IBAN, KEY, ORDER)
RULES = Redaction(
    [*(find_builtin(name) for name in get_args(BuiltIn)), own("order", "ORD-[0-9]+")], b"salt"
)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_user",
            "description": f"Sends {KEY}.",
            "parameters": {"type": "object", "properties": {MAIL: {"type": "string"}}},
        },
    }
]
ESCAPED = '{"mail": "jumpyfox\\u0040dwv.kz", "card": %s}' % NUMBER  # noqa: UP031
CONVERSATION = [
    {"role": "system", "content": f"You answer {MAIL}."},
    {"role": "user", "content": [{"type": "text", "text": f"My card is {CARD}."}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get_user", "arguments": ESCAPED},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": json.dumps({"account": [IBAN]})},
    {"role": "user", "content": f"And order {ORDER}?"},
]


@pytest.fixture
def knowing(tmp_path: Path, shop_tokens: PreTrainedTokenizerFast) -> Iterator[str]:
    """An engine that answers everything with a secret, with room for long conversations."""
    folder = tmp_path / "knowing"
    reciting(folder, shop_tokens, MAIL, max_position_embeddings=2048)
    with listening(Policy.load(folder, "tiny"), Chat(folder)) as live:
        yield live.url


def send(front: Fronted, path: str, body: Any, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.post(f"{front.url}{path}", json=body, headers=named, timeout=120)


def plant(front: Fronted, tokens: PreTrainedTokenizerFast) -> list[httpx2.Response]:
    """Say every secret wherever one can be said; the answers that an engine gave."""
    chat: dict[str, Any] = {"messages": CONVERSATION, "tools": TOOLS, "stop": [ORDER]}
    chat |= {"max_tokens": 24, "user": MAIL, "seed": int(NUMBER) % 2**31}
    names = {"x_kintsugi_session": MAIL, "x_kintsugi_user": MAIL}
    answers = [
        send(front, CHAT, chat, idempotency_key=MAIL, **names),
        send(front, CHAT, chat | {"stream": True}, idempotency_key="k2", **names),
        send(front, CHAT, chat | {"n": 2, "logprobs": True, "return_token_ids": True}),
        send(front, f"/r/user/{MAIL}/session/{MAIL}{CHAT}", chat),
        send(front, TEXT, {"prompt": [f"Pay {CARD} to {IBAN}", MAIL], "max_tokens": 8}),
        send(front, TEXT, {"prompt": tokens.encode(f"Pay {CARD} to {MAIL}"), "max_tokens": 8}),
        send(front, CHAT, {"messages": [{"role": "user", "content": "Hi"}]}, idempotency_key="k3"),
    ]
    # What no engine answers: refusals that quote, and what is too large for a record.
    noise = base64.b85encode(random.Random(1).randbytes(900_000)).decode()
    for body in (
        chat | {"model": MAIL},
        chat | {"messages": [{"role": MAIL, "content": CARD}]},
        chat | {"max_tokens": MAIL},
        chat | {"messages": [{"role": "user", "content": f"{noise} {MAIL} {noise}"}]},
    ):
        assert send(front, CHAT, body).status_code >= 400
    said = {"score": 1, "comment": f"Ask {MAIL}.", "tags": [ORDER, "good"]}
    call = answers[0].headers["x-kintsugi-call"]
    for about in ({"call": call}, {"session": MAIL}, {"session": "s", "call": MAIL}):
        done = send(front, "/v1/feedback", said | about | {"idempotency_key": KEY + str(about)})
        assert done.status_code == 200, done.text
    assert send(front, f"/v1/sessions/{MAIL}/end", None).status_code == 200
    return answers


def fold(kintsugi: Kintsugi) -> None:
    """Into tables, and ended sessions into rollouts."""
    for command in (("work", "--once"), ("diagnose",)):
        done = kintsugi(*command)
        assert done.code == 0, done.err


def stored(home: Path, tokens: PreTrainedTokenizerFast) -> Iterator[tuple[str, str]]:
    """Everything that a home holds: what kind of thing, and its text."""
    for file in sorted(home.rglob("*")):
        if file.is_file():
            yield "bytes", file.read_bytes().decode("latin-1")
    yield from events(home, tokens)
    for name in ("log.db", "kintsugi.db"):
        with closing(sqlite3.connect(home / name)) as database:
            yield from rows(database)


def events(home: Path, tokens: PreTrainedTokenizerFast) -> Iterator[tuple[str, str]]:
    blobs = BlobStore(home / "blobs")
    with closing(SqliteLog(home / "log.db", read_only=True)) as log:
        for partition in range(ROLLOUTS.partitions):
            for record in log.read(ROLLOUTS.name, partition, 0, limit=10_000, max_bytes=1 << 30):
                event, arrays = decode(record), arrays_of(record.value)
                if event.blob is not None:
                    event, arrays = attach(event, blobs.get(event.blob.sha256))
                    yield "blob", str(event.data)
                yield "event", f"{record.key} {record.headers!r} {event.data!r}"
                for name, values in arrays.items():
                    if "token_ids" in name:
                        yield "tokens", str(tokens.decode(list(values)))


def rows(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for row in database.execute(f'SELECT * FROM "{table}"'):
            yield "row", repr(row)
            if table == "receipt" and row[-1]:
                yield "receipt", zstandard.decompress(row[-1]).decode()


def leaks(home: Path, tokens: PreTrainedTokenizerFast) -> set[tuple[str, str]]:
    """Which secret stands in which kind of thing."""
    return {
        (kind, secret)
        for kind, text in stored(home, tokens)
        for secret in SECRETS
        if secret in text
    }


def test_nothing_stored_holds_a_planted_secret(
    knowing: str, home: Path, kintsugi: Kintsugi, shop_tokens: PreTrainedTokenizerFast
) -> None:
    home.mkdir()
    with fronting(home, [knowing], redaction=RULES) as front:
        answers = plant(front, shop_tokens)
        assert leaks(home, shop_tokens) == set(), "while it runs, with what is not folded yet"
        for answer in answers:
            assert answer.status_code == 200, answer.text
        assert MAIL in answers[0].text, "what the client gets is never touched"
        assert not any(ended.trainable for ended in front.ended())
        reasons = {e.untrainable_because or "" for e in front.ended() if e.outcome == "completed"}
        assert "redaction rules matched: card, email, iban, order, secret" in reasons
        assert "redaction rules matched: email" in reasons, "only the answer held one"
    fold(kintsugi)
    assert leaks(home, shop_tokens) == set()
    assert kintsugi("rollouts", "ls", "--json").json


def test_the_same_reading_finds_them_where_there_are_no_rules(
    knowing: str, home: Path, kintsugi: Kintsugi, shop_tokens: PreTrainedTokenizerFast
) -> None:
    home.mkdir()
    with fronting(home, [knowing]) as front:
        plant(front, shop_tokens)
    fold(kintsugi)
    found = leaks(home, shop_tokens)
    assert {secret for _, secret in found} == set(SECRETS)
    assert {kind for kind, _ in found} == {"bytes", "event", "blob", "tokens", "row", "receipt"}


def test_a_call_is_judged_by_its_whole_request_and_its_relation_stays_true(
    front_over: Any, live: Live
) -> None:
    front = front_over(live.url, redaction=RULES)
    said: list[Any] = [{"role": "user", "content": "Hello"}]
    for following in (f"I am {MAIL}.", "And now?"):
        answer = send(front, CHAT, {"messages": said, "max_tokens": 8})
        said += [answer.json()["choices"][0]["message"], {"role": "user", "content": following}]
    send(front, CHAT, {"messages": said, "max_tokens": 8})
    started, ended = front.started(), front.ended()
    assert len({one.session for one in started}) == 1, "unnamed, they were recognised"
    assert [one.parent for one in started] == [None, started[0].call, started[1].call]
    assert [one.parent_messages for one in started] == [0, 2, 4]
    assert [len(one.content.messages) for one in started] == [1, 1, 1]
    assert [one.trainable for one in ended] == [True, False, False]
    assert started[1].content.messages[0].text == "I am [redacted:email]."
    assert started[2].content.messages[0].text == "And now?"
    assert ended[2].untrainable_because == "redaction rules matched: email"


def test_names_that_match_are_pseudonyms_and_attribution_works(front_over: Any, live: Live) -> None:
    front = front_over(live.url, redaction=RULES)
    hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    names = {"x_kintsugi_session": MAIL, "x_kintsugi_user": MAIL}
    sessions = {send(front, CHAT, hello, **names).headers["x-kintsugi-session"] for _ in "ab"}
    (session,) = sessions
    assert session.startswith("redacted-email-")
    told = send(front, "/v1/feedback", {"session": MAIL, "score": 1}).json()
    assert told["session"] == session
    assert {event.envelope.person for event in front.events()} == {RULES.redact_name(MAIL), None}
    assert [one.trainable for one in front.ended()] == [True, True], "a name is no prompt"


def test_the_salt_of_a_home_is_made_once_and_is_nobodys_else(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert salt(tmp_path) == salt(tmp_path) != salt(tmp_path / "other")
    assert (tmp_path / "salt").stat().st_mode & 0o777 == 0o600
    (tmp_path / "salt").write_bytes(b"short")
    with pytest.raises(LogCorrupt, match="holds 5 bytes and not 32"):
        salt(tmp_path)


def test_lines_of_the_programs_own_log_hold_none_either() -> None:
    line = RedactingFormatter(RULES).format(
        logging.LogRecord("kintsugi", logging.ERROR, "", 1, "%s failed", (MAIL,), None)
    )
    assert line == "ERROR:kintsugi:[redacted:email] failed"
