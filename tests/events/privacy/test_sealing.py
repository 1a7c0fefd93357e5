"""What a person says is readable with that person's key, and with nothing else."""

import array
import random
from dataclasses import replace
from pathlib import Path

import pytest

from events.blobs import BlobStore
from events.bodies import Bodies
from events.codec import WireEvent, ciphertext_of, decode, encode
from events.envelope import Envelope, new_id
from events.errors import BadRecord, BlobError
from events.log import Entry, Record
from events.messages import Message
from events.privacy.sealing import Key, digest_with_key, new_secret, seal, unseal
from events.rollouts import (
    CallEndContent,
    CallEnded,
    EventData,
    FeedbackReceived,
    SessionEnded,
)

SAID = "my name is Rosa and I live at 5 Elm Street"
KEY = Key("key-1", "rosa", new_secret())
OTHER = Key("key-2", "otto", new_secret())
ENDED = CallEnded(
    call="c1", session="s1", outcome="completed", error=SAID, finish_reason="stop",
    content=CallEndContent(messages=(Message(role="assistant", content=SAID),)),
)  # fmt: skip
ARRAYS = {"token_ids": array.array("i", [1, 2, 3])}


def stored(data: EventData, owner: Key | None = KEY) -> WireEvent:
    envelope = Envelope(id=new_id(), type=data.TYPE, version=1, subject=data.key(), person="rosa")
    return encode(envelope, data, 1, ARRAYS if data is ENDED else None, owner=owner)


def record_of(entry: Entry) -> Record:
    return Record(
        entry.stream, entry.partition, 0, "log", 0, entry.key, entry.headers, entry.value, 1
    )


def bodies(tmp_path: Path, *keys: Key) -> Bodies:
    return Bodies(BlobStore(tmp_path / "blobs"), {key.id: key for key in keys}.get)


def test_a_sealed_event_is_what_it_was_for_who_has_the_key(tmp_path: Path) -> None:
    record = record_of(stored(ENDED).entry)
    found = bodies(tmp_path, KEY, OTHER).whole(record)
    assert found.event.data == ENDED
    assert (found.arrays, found.key, found.is_unreadable) == (ARRAYS, KEY, False)
    assert (found.event.envelope.person, found.event.envelope.keyid) == ("rosa", "key-1")


def test_without_the_key_there_are_a_head_and_no_words(tmp_path: Path) -> None:
    record = record_of(stored(ENDED).entry)
    assert b"rosa" not in b"".join(raw for _, raw in record.headers)
    for event in (decode(record), bodies(tmp_path, OTHER).whole(record).event):
        assert event.sealed
        assert isinstance(event.data, CallEnded)
        assert (event.data.call, event.data.outcome) == ("c1", "completed")
        assert (event.data.error, event.data.finish_reason, event.data.content) == (None,) * 3
        assert SAID not in repr(event)
    assert bodies(tmp_path).whole(record).arrays == {}


def test_a_field_that_may_hold_words_is_sealed_without_content_as_well(tmp_path: Path) -> None:
    feedback = FeedbackReceived(session="s1", score=0.5, tags=(SAID,))
    record = record_of(stored(feedback).entry)
    assert decode(record).data == FeedbackReceived(session="s1", score=0.5)
    assert bodies(tmp_path, KEY).whole(record).event.data == feedback


def test_an_event_that_says_nothing_names_its_key_and_is_open(tmp_path: Path) -> None:
    record = record_of(stored(SessionEnded(session="s1", because="asked")).entry)
    event = bodies(tmp_path).whole(record).event
    assert (event.sealed, event.envelope.keyid, event.envelope.person) == (False, "key-1", None)


def test_a_large_body_is_sealed_in_its_blob(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(1_200_000).hex()
    large = ENDED.model_copy(
        update={"content": CallEndContent(messages=(Message(role="user", content=noise),))}
    )
    encoded = stored(large)
    assert encoded.blob is not None
    assert ciphertext_of(encoded.entry.value) == b""
    reader, record = bodies(tmp_path, KEY), record_of(encoded.entry)
    with pytest.raises(BlobError):
        reader.whole(record)
    reader.blobs.put(encoded.blob)
    assert reader.whole(record).event.data == large
    assert bodies(tmp_path).whole(record).is_unreadable, (
        "nobody looks for a blob that cannot be opened"
    )


def test_a_body_cannot_be_put_into_another_event(tmp_path: Path) -> None:
    record, other = (record_of(stored(ENDED).entry) for _ in range(2))
    with pytest.raises(BadRecord, match="key-1"):
        bodies(tmp_path, KEY).whole(replace(record, headers=other.headers))
    with pytest.raises(BadRecord):
        bodies(tmp_path, replace(OTHER, id="key-1")).whole(record)


@pytest.mark.parametrize("harm", [b"", b"x", bytes(40)])
def test_what_no_key_sealed_is_refused(harm: bytes) -> None:
    with pytest.raises(BadRecord, match="key-1"):
        unseal(KEY, harm, "event 1")
    assert unseal(KEY, seal(KEY, harm, "event 1"), "event 1") == harm


def test_a_digest_of_one_person_says_nothing_of_another() -> None:
    assert digest_with_key(KEY, SAID) == digest_with_key(KEY, SAID)
    assert (
        len({digest_with_key(KEY, SAID), digest_with_key(OTHER, SAID), digest_with_key(KEY, "")})
        == 3
    )


def test_a_key_does_not_print_its_secret() -> None:
    assert KEY.secret.hex() not in repr(KEY)
    assert repr(KEY.secret) not in repr(KEY)
