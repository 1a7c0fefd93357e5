"""Receipts: values under a key, kept for a day to answer a repeated request. A receipt is written
in its record's transaction, so it exists exactly if the record does. Nothing folds or ships it. Old
receipts are deleted after a day, or when too many. Within a day, a key's first receipt stays."""

import sqlite3
from dataclasses import dataclass
from typing import Final

KEPT_MS: Final = 24 * 3600 * 1000
"""Milliseconds for which a receipt is kept."""

MAX_RECEIPTS: Final = 100_000
"""Most receipts that are kept; the oldest are deleted first."""

MAX_RECEIPT_BYTES: Final = 1 << 20
"""Largest value of a receipt, in bytes."""

_DROPPED_AT_ONCE: Final = 8
"""Old receipts deleted per new receipt; above 1, so their number falls after busy days."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS receipt (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    recorded_ms INTEGER NOT NULL,
    value BLOB NOT NULL
)
"""
# `place` grows with every receipt, so the oldest are found without an index over times.


@dataclass(frozen=True, slots=True)
class Receipt:
    """A value that is stored with a record, under a key."""

    key: str
    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) > MAX_RECEIPT_BYTES:
            raise ValueError(
                f"a receipt of {len(self.value):,} bytes, at most {MAX_RECEIPT_BYTES:,} are kept"
            )


def put(connection: sqlite3.Connection, receipt: Receipt, now_ms: int) -> None:
    """Store a receipt within the caller's transaction, and delete old receipts."""
    connection.execute(
        "INSERT INTO receipt (key, recorded_ms, value) VALUES (?, ?, ?) ON CONFLICT (key) "
        "DO UPDATE SET recorded_ms = excluded.recorded_ms, value = excluded.value "
        "WHERE recorded_ms < excluded.recorded_ms - ?",
        (receipt.key, now_ms, receipt.value, KEPT_MS),
    )
    connection.execute(
        "DELETE FROM receipt WHERE place IN (SELECT place FROM receipt ORDER BY place LIMIT ?) "
        "AND (recorded_ms < ? OR place <= (SELECT max(place) FROM receipt) - ?)",
        (_DROPPED_AT_ONCE, now_ms - KEPT_MS, MAX_RECEIPTS),
    )


def get(connection: sqlite3.Connection, key: str, now_ms: int) -> bytes | None:
    """Return the value under a key; None if it is missing or more than a day old."""
    row = connection.execute(
        "SELECT value FROM receipt WHERE key = ? AND recorded_ms >= ?", (key, now_ms - KEPT_MS)
    ).fetchone()
    return None if row is None else bytes(row[0])
