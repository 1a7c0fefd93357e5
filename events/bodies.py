"""Reads an event's content and arrays from its record or its blob, and decrypts them if needed."""

from collections.abc import Callable
from dataclasses import dataclass, field

from events.blobs import BlobStore
from events.codec import (
    Arrays,
    Event,
    arrays_of,
    attach,
    check_blob,
    ciphertext_of,
    decode,
    unseal_event,
)
from events.log import Record
from events.privacy.sealing import Key
from events.streams import ROLLOUTS

FindKey = Callable[[str], Key | None]
"""Finds a key by id; returns None if it was destroyed. Raises KeyMissing if it should exist."""


@dataclass(frozen=True, slots=True)
class Whole:
    """An event with its content and arrays, as far as they can be read."""

    event: Event
    arrays: Arrays = field(default_factory=dict)
    key: Key | None = None
    """Key that sealed the event; None if it is not sealed or its person was erased."""

    @property
    def is_unreadable(self) -> bool:
        """Return whether the content can no longer be read."""
        return self.event.sealed


class Bodies:
    """Reads events with content and arrays."""

    def __init__(self, blobs: BlobStore, find: FindKey) -> None:
        self.blobs = blobs
        self._find = find

    def whole(self, record: Record, arrays: bool = True) -> Whole:
        """Return the event with content and arrays, or without both if its person was erased. With
        `arrays` False, arrays in the record itself are not read. Raises the errors of `decode`, and
        BlobError, KeyMissing, KeysUnavailable."""
        event = decode(record)
        if event.sealed:
            return self._unseal(event, record)
        if event.blob is not None:
            return Whole(*attach(event, self.blobs.get(event.blob.sha256)))
        held = arrays and record.stream == ROLLOUTS.name
        return Whole(event, arrays_of(record.value) if held else {})

    def _unseal(self, event: Event, record: Record) -> Whole:
        key = self._find(event.envelope.keyid or "")
        if key is None:
            return Whole(event)
        if event.blob is None:
            sealed = ciphertext_of(record.value)
        else:
            sealed = self.blobs.get(event.blob.sha256)
            check_blob(event, sealed)
        return Whole(*unseal_event(event, sealed, key), key)
