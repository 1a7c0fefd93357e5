"""Appends the gateway's events durably to its log. Guarantee: `append` returns when the event is
durable in the spool (waiting events share an fsync), or raises. It never blocks the event loop. A
person's data and receipts are encrypted before they are written."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from events.blobs import BlobStore
from events.codec import Arrays, WireEvent, encode
from events.envelope import Envelope, new_id, utc_now
from events.log import now_ms
from events.privacy.keys import KeyStore
from events.privacy.sealing import Key
from events.rollouts import EventData
from events.sqlite.log import SqliteLog
from events.sqlite.receipts import Receipt
from producers.gateway.capture.receipts import open_receipt, seal_receipt
from producers.gateway.large_work import run_in_thread_if_large


@dataclass(frozen=True, slots=True)
class About:
    """The common fields of one call's envelopes."""

    person: str | None = None
    traceparent: str | None = None


class Recorder:
    """Appends events of the gateway."""

    def __init__(self, spool: SqliteLog, blobs: BlobStore, keys: KeyStore | None = None) -> None:
        """`keys`: the key store; None: nothing is encrypted."""
        self.spool = spool
        self.keys = keys
        self._blobs = blobs

    def receipt(self, key: str) -> bytes | None:
        """Return a receipt's value; None without one, or if its person was erased. Blocks."""
        value = self.spool.receipt(key)
        return value if value is None else open_receipt(value, key, self.keys)

    async def keyid(self, about: About) -> str | None:
        """Return the id of the key for these events; None if unsealed. Raises KeysUnavailable."""
        owner = await self._owner(about)
        return None if owner is None else owner.id

    async def append(
        self,
        data: EventData,
        about: About,
        *,
        id: str | None = None,
        cause: str | None = None,
        arrays: Arrays | None = None,
        receipt: Receipt | None = None,
        size: int = 0,
    ) -> str:
        """Append about `size` bytes; return the event's id once safe. Raises LogError or
        TooLarge."""
        owner = await self._owner(about)
        encoded = await run_in_thread_if_large(
            size, _encode, data, about, id or new_id(), cause, arrays, owner
        )
        await self._append([encoded], receipt, owner)
        return encoded.id

    async def append_all(
        self,
        events: Sequence[tuple[str, str | None, EventData]],
        about: About,
        receipt: Receipt | None = None,
        size: int = 0,
    ) -> None:
        """Append events (id, cause, data), all or none. `size` and errors are those of `append`."""
        owner = await self._owner(about)
        batch = [
            await run_in_thread_if_large(size, _encode, data, about, event, cause, None, owner)
            for event, cause, data in events
        ]
        await self._append(batch, receipt, owner)

    async def _append(
        self, batch: Sequence["_Ready"], receipt: Receipt | None, owner: Key | None
    ) -> None:
        if receipt is not None and owner is not None:
            receipt = replace(receipt, value=seal_receipt(receipt, owner))
        for item in batch:
            if item.encoded.blob is not None:
                await asyncio.to_thread(self._blobs.put, item.encoded.blob)
        entries = [item.encoded.entry for item in batch]
        await asyncio.wrap_future(self.spool.begin_append(entries, receipt))

    async def _owner(self, about: About) -> Key | None:
        """Return the (durable) key of the person whose data it is; most calls find it in memory."""
        if about.person is None or self.keys is None:
            return None
        known = self.keys.find_in_memory(about.person)
        return known or await asyncio.to_thread(self.keys.of, about.person)


@dataclass(frozen=True, slots=True)
class _Ready:
    id: str
    encoded: WireEvent


def _encode(
    data: EventData,
    about: About,
    event: str,
    cause: str | None,
    arrays: Arrays | None,
    owner: Key | None,
) -> _Ready:
    envelope = Envelope(
        id=event,
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=utc_now(),
        cause=cause,
        person=about.person,
        traceparent=about.traceparent,
    )
    return _Ready(event, encode(envelope, data, now_ms(), arrays, owner))
