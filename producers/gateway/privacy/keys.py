"""Keys of the gateway's clients, stored as hashes only. A key is 256 random bits that `kintsugi
key` shows once, so its plain SHA-256 can be stored. A token is a key, or a key, `~` and a session's
name, for agents that can set only an API key. Without configured keys `none~SESSION` names a
session; other text there may be a real key, and no part of a key is ever kept. Every stored hash is
compared in constant time, and always all of them. Pure."""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

Scope = Literal["call", "feedback", "trusted", "status"]
"""`call`: ask the model; `feedback`: post it; `status`: see its page; `trusted`: believe its tasks
and outcomes."""

_MARK: Final = "~"

_NOBODYS: Final = ("", "none", "EMPTY")
"""Values that clients send in place of a key where none is needed."""


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client's key and its scopes."""

    name: str
    sha256: str
    """SHA-256 of the key's UTF-8 bytes, in hex."""
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True)
class Client:
    """The client that sends a request."""

    name: str | None
    """Name of its key; None where no keys are configured."""
    scopes: frozenset[Scope]
    session: str | None = None


class ClientKeys:
    """The keys of a gateway. Without keys every client is admitted and none is trusted."""

    def __init__(self, keys: Sequence[ClientKey]) -> None:
        self._keys = tuple(keys)

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._keys

    def client(self, authorization: str | None) -> Client | None:
        """Return the client that sent this header; None for an unknown key, or without a key."""
        token = _token(authorization)
        secret, mark, session = token.rpartition(_MARK)
        if not mark:
            secret, session = token, ""
        if self.open:
            named = session if secret in _NOBODYS else ""
            return Client(None, frozenset(("call", "feedback", "status")), named or None)
        digest = sha256(secret.encode()).hexdigest()
        matches = [key for key in self._keys if hmac.compare_digest(key.sha256, digest)]
        return Client(matches[0].name, matches[0].scopes, session or None) if matches else None


def mint_key() -> str:
    """Return a new key."""
    return f"kg-{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """Return the stored form of a key."""
    return sha256(key.encode()).hexdigest()


def _token(authorization: str | None) -> str:
    kind, _, token = (authorization or "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
