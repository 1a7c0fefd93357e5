"""Encrypts receipts that belong to a person. Format: "kr1" | length of the key's id | the key's id
| sealed value (events/privacy/sealing.py). An empty value, which only marks a done action, stays
empty."""

from typing import Final

from events.privacy.sealing import OVERHEAD_BYTES, Key, Keys, seal, unseal
from events.sqlite.receipts import Receipt

_MAGIC: Final = b"kr1"
"""First bytes of a sealed receipt; no zstd frame begins with them."""

MAX_OVERHEAD_BYTES: Final = len(_MAGIC) + 1 + 64 + OVERHEAD_BYTES
"""Largest number of bytes that sealing adds to a receipt."""


def seal_receipt(receipt: Receipt, key: Key) -> bytes:
    """Return the receipt's value, encrypted; an empty value stays empty."""
    if not receipt.value:
        return receipt.value
    name = key.id.encode()
    return _MAGIC + bytes([len(name)]) + name + seal(key, receipt.value, _context(receipt.key))


def open_receipt(value: bytes, receipt: str, keys: Keys | None) -> bytes | None:
    """Return a receipt's decrypted value; None if its key was destroyed, so the call runs again."""
    if not value.startswith(_MAGIC):
        return value
    begin = len(_MAGIC) + 1
    end = begin + value[begin - 1]
    key = None if keys is None else keys.find(value[begin:end].decode())
    return None if key is None else unseal(key, value[end:], _context(receipt))


def _context(receipt: str) -> str:
    return f"receipt {receipt}"
