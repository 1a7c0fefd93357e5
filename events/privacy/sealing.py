"""Encrypts a person's data with that person's key: AES-256 in GCM, by `cryptography`.

    sealed      nonce of 12 random bytes | ciphertext | tag of 16 bytes

The context (event and part) is authenticated with it, so no sealed body fits another event.
"""

import hmac
import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Protocol

from events.errors import BadRecord, KintsugiError

SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 12
OVERHEAD_BYTES: Final = _NONCE_BYTES + 16
"""Bytes that sealing adds."""


class KeyMissing(KintsugiError):
    """A key is missing from the key store, although its person was not erased."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of one person."""

    id: str
    """The id that the log names; it reveals nothing about the person."""
    person: str
    secret: bytes = field(repr=False)


class Keys(Protocol):
    """A store of keys (keys.py)."""

    def of(self, person: str) -> Key:
        """Return a person's key. Make it if it does not exist; it is durable on return."""
        ...

    def find(self, keyid: str) -> Key | None:
        """Return the key with this id, or None."""
        ...


def new_secret() -> bytes:
    """Return a new random secret of `SECRET_BYTES` bytes."""
    return os.urandom(SECRET_BYTES)


def seal(key: Key, plain: bytes, context: str) -> bytes:
    """Encrypt `plain`; `unseal` needs the same key and context."""
    # Not at the top: most commands seal nothing, and the library takes a while to load.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key.secret).encrypt(nonce, plain, context.encode())


def unseal(key: Key, sealed: bytes, context: str) -> bytes:
    """Decrypt. Raises BadRecord for changed bytes, a wrong key or a wrong context."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return AESGCM(key.secret).decrypt(nonce, ciphertext, context.encode())
    except (InvalidTag, ValueError) as error:
        raise BadRecord(
            f"what key {key.id} sealed for {context} is not what was stored; restore the record, "
            "or the key, from a copy"
        ) from error


def digest_with_key(key: Key, text: str) -> str:
    """Return a keyed hex digest (HMAC-SHA-256): equal for equal texts of one person only."""
    return hmac.new(key.secret, text.encode(), sha256).hexdigest()
