"""The gateway as a process: settings in, a server that drains on SIGTERM.

Refuses to listen beyond this machine without keys: whoever reaches it spends its engines and reads
what they say. On SIGTERM or SIGINT nothing new is taken, calls that are being answered are
finished within `gateway.grace_seconds`, and the rest is recorded as aborted.
"""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvicorn

from daemon.settings import ConfigurationError, Settings
from events.envelope import minted_id
from events.errors import LogCorrupt, LogReadOnly, LogUnavailable
from producers.gateway.keys import ClientKey, Keyring
from producers.gateway.recorder import Recorder
from producers.gateway.redaction import Redaction
from producers.gateway.server import Gateway, Options
from producers.gateway.upstreams import Upstream, Upstreams

if TYPE_CHECKING:
    from daemon.app import App

_MAX_HEAD_BYTES: Final = 64 << 10
"""Of request line and headers."""

_SALT_BYTES: Final = 32

_logger = logging.getLogger(__name__)


def gateway(app: "App", urls: Sequence[str] = ()) -> Gateway:
    """The gateway of a home; `urls` in the place of the configured upstreams."""
    settings = app.settings
    options = Options(
        alias=settings.gateway.alias,
        capture=settings.gateway.capture,
        timeout_seconds=settings.gateway.timeout_seconds,
        max_body_bytes=settings.gateway.max_body_bytes,
        feedback_per_minute=settings.gateway.feedback_per_minute,
        ships=app.on_kafka,
    )
    recorder = Recorder(app.spool, app.blobs)
    engines = Upstreams(upstreams(settings, urls))
    return Gateway(recorder, engines, keyring(settings), options, redaction(app))


def redaction(app: "App") -> Redaction:
    """What is not written. The home's salt is made where there are rules."""
    rules = app.settings.redaction.made()
    return Redaction(rules, salt(app.home)) if rules else Redaction()


def salt(home: Path) -> bytes:
    """The secret of a home's pseudonyms: 32 bytes in the file `salt`, made when first asked for.

    Raises LogReadOnly where it cannot be made, LogCorrupt where the file holds something else.
    """
    path = home / "salt"
    if not path.exists():
        _make_salt(path)
    found = path.read_bytes()
    if len(found) != _SALT_BYTES:
        raise LogCorrupt(
            f"{path} holds {len(found)} bytes and not {_SALT_BYTES}; restore it, or remove it and "
            "get other pseudonyms from then on"
        )
    return found


def _make_salt(path: Path) -> None:
    temporary = path.with_name(f".salt.{minted_id()}")
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_SALT_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # Of several that start at once, one makes it.
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise LogReadOnly(
            f"{path} cannot be made: {error.strerror}; make its folder writable"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


class RedactingFormatter(logging.Formatter):
    """Lines of the program's own log, without what must not be written either."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__("%(levelname)s:%(name)s:%(message)s")
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """The line, with the traceback where there is one."""
        return self._redaction.text(super().format(record))


def _log_to_stderr(redaction: Redaction) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(redaction))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def serve(app: "App", urls: Sequence[str], host: str | None, port: int | None) -> None:
    """Answer until told to stop. Raises ConfigurationError, LogError."""
    settings = app.settings.gateway
    host = settings.host if host is None else host
    check_reach(host, bool(settings.keys))
    made = gateway(app, urls)
    _log_to_stderr(redaction(app))
    with _bound(host, settings.port if port is None else port) as bound:
        config = uvicorn.Config(
            made.app,
            http="h11",
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            log_level="warning",
            log_config=None,  # its lines go where ours go
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=settings.grace_seconds,
        )
        # uvicorn stops on these, then raises them again for whoever listened before.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        address = f"http://{_printed(host)}:{bound.getsockname()[1]}/v1"
        print(f"kintsugi gateway at {address}", file=sys.stderr, flush=True)
        asyncio.run(uvicorn.Server(config).serve(sockets=[bound]))


def check_reach(host: str, keys: bool) -> None:
    """Refuse to listen beyond this machine without keys."""
    if keys or _is_loopback(host):
        return
    raise ConfigurationError(
        f"gateway.host is {host}, which others can reach, and gateway.keys is empty; mint a key "
        "with kintsugi key NAME, or listen on 127.0.0.1"
    )


def upstreams(settings: Settings, urls: Sequence[str]) -> list[Upstream]:
    """The engines: those named, with the configured keys of those that are configured too."""
    known = {one.url.rstrip("/"): one for one in settings.upstreams}
    named = [url.rstrip("/") for url in urls] or list(known)
    if not named:
        raise ConfigurationError("no engine is named; give --upstream URL or the setting upstreams")
    for url in named:
        if not url.startswith(("http://", "https://")) or not url.endswith("/v1"):
            raise ConfigurationError(f"upstream {url!r} is no http URL that ends in /v1")
    return [Upstream(url, _key(settings, url)) for url in dict.fromkeys(named)]


def keyring(settings: Settings) -> Keyring:
    """The clients' keys."""
    keys = [ClientKey(one.name, one.sha256, frozenset(one.scopes)) for one in settings.gateway.keys]
    return Keyring(keys)


def _key(settings: Settings, url: str) -> str | None:
    for one in settings.upstreams:
        if one.url.rstrip("/") != url:
            continue
        if one.api_key is not None:
            return one.api_key.get_secret_value()
        if one.api_key_file is not None:
            return one.api_key_file.expanduser().read_text().strip()
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _printed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family)
    except OSError as error:
        raise LogUnavailable(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another"
        ) from error
    # Connections inherit it. asyncio sets it itself only on sockets that say they are TCP, which
    # those of create_server do not, and an answer in two writes would wait 40 ms for the client.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
