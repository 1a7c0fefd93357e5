"""Keys of the gateway's clients, stored as hashes only. A key is 256 random bits that `kintsugi
key` shows once, so its plain SHA-256 can be stored. A token is a key, or KEY~SESSION for agents
that can only set an API key. If no keys are configured, `none~SESSION` names a session; another
token may be a real key, of which nothing is kept. Every stored hash is compared, in constant time.
Pure."""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

Scope = Literal["call", "feedback", "trusted", "status"]
"""`call`: send calls; `feedback`: post feedback; `status`: read the status page; `trusted`: its
tasks and verdicts are accepted."""

_MARK: Final = "~"

_NOBODYS: Final = ("", "none", "EMPTY")
"""Values that clients send as a key if no key is needed."""


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
    """Name of the client's key; None if no keys are configured."""
    scopes: frozenset[Scope]
    session: str | None = None


class ClientKeys:
    """The keys of a gateway. Without keys every client is admitted and none is trusted."""

    def __init__(self, keys: Sequence[ClientKey]) -> None:
        self._keys = tuple(keys)

    @property
    def open(self) -> bool:
        """Return whether no key is needed."""
        return not self._keys

    def client(self, authorization: str | None) -> Client | None:
        """Return the client for an Authorization header; None if its key is missing or unknown."""
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
