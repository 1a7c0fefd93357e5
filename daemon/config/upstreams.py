"""The engines that the settings name, and the key of each."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from daemon.config.settings import ConfigurationError, Settings
from daemon.config.settings import Upstream as ConfiguredUpstream
from producers.gateway.routing.upstreams import Upstream

if TYPE_CHECKING:
    pass


_SENDABLE: Final = re.compile(r"[\x21-\x7e]+")


def upstreams(settings: Settings, urls: Sequence[str]) -> list[Upstream]:
    """Return the engines that `urls` or else the settings name, with their configured keys."""
    known = {upstream.url.rstrip("/"): upstream for upstream in settings.upstreams}
    named = [url.rstrip("/") for url in urls] or list(known)
    if not named:
        raise ConfigurationError("no engine is named; give --upstream URL or the setting upstreams")
    for url in named:
        _check_url(url)
    return [Upstream(url, key_of(settings, url)) for url in dict.fromkeys(named)]


def _check_url(url: str) -> None:
    """Raise ConfigurationError for a bad URL, or one with a key, which many messages would show."""
    try:
        parts = urlsplit(url)
        whole = bool(parts.hostname) and parts.port != 0 and _SENDABLE.fullmatch(url) is not None
    except ValueError:
        # The parser's reason may quote a part of a key.
        raise ConfigurationError(
            "an upstream is no URL; write http://HOST:PORT/v1, with a port from 1 to 65535"
        ) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise ConfigurationError(
            f"upstream {shown!r} has more than scheme, host and path; put a key into "
            "upstreams[].api_key"
        )
    if parts.scheme not in ("http", "https") or not whole or not url.endswith("/v1"):
        raise ConfigurationError(f"upstream {url!r} is no http URL that ends in /v1")


def key_of(settings: Settings, url: str) -> str | None:
    """Return an engine's key; None where none is set. Raises ConfigurationError."""
    for place, upstream in enumerate(settings.upstreams):
        if upstream.url.rstrip("/") == url:
            key = _secret(upstream, f"upstreams[{place}]")
            if key is not None and _SENDABLE.fullmatch(key) is None:
                raise ConfigurationError(
                    f"the key of upstreams[{place}] ({url}) is empty or has characters that no "
                    "header can hold; give the key alone"
                )
            return key
    return None


def _secret(upstream: ConfiguredUpstream, where: str) -> str | None:
    if upstream.api_key is not None:
        if upstream.api_key_file is not None:
            raise ConfigurationError(f"{where} has api_key and api_key_file; give one of them")
        return upstream.api_key.get_secret_value()
    if upstream.api_key_file is None:
        return None
    path = upstream.api_key_file.expanduser()
    try:
        return path.read_bytes().decode("latin-1").strip()
    except OSError as error:
        raise ConfigurationError(
            f"{where}.api_key_file is {path}, which cannot be read: {error.strerror}; correct the "
            "name or its permissions"
        ) from error
