"""Runs the gateway as a server process that drains on SIGTERM or SIGINT. Without client keys it
listens only on this machine, because any client that reaches it could use its engines. On a signal
it reports that it is not ready and accepts no new call. It finishes current calls within
`gateway.grace_seconds`, and records the rest as aborted."""

import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn
import uvloop

from daemon.config.settings import ConfigurationError, Settings
from daemon.config.upstreams import upstreams
from daemon.core import systemd
from daemon.core.spool_reporter import report_in_background
from daemon.core.start_mark import headers
from daemon.roles.http_timeouts import PatientConnection
from daemon.roles.route_follower import follow_routes
from daemon.status.page import status_page
from events.envelope import new_id
from events.errors import LogCorrupt, LogReadOnly, LogUnavailable
from producers.gateway.call import MakeChooser
from producers.gateway.capture.recorder import Recorder
from producers.gateway.http.request_guard import MAX_HEAD_BYTES
from producers.gateway.privacy.keys import ClientKey, ClientKeys
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.routing.routing import Routing
from producers.gateway.routing.upstreams import Upstreams
from producers.gateway.server import Gateway, Options

if TYPE_CHECKING:
    from daemon.core.app import App

_SALT_BYTES: Final = 32

_KEPT_SECONDS: Final = 75
"""Seconds a connection may stay idle. Clients close theirs earlier (OpenAI's after 5 seconds), so
no client sends a request on a connection that the gateway closes."""

_CUT_SECONDS: Final = 1
"""Seconds of the grace period reserved for uvicorn's own shutdown."""


def gateway(app: "App", urls: Sequence[str], make_chooser: MakeChooser) -> Gateway:
    """Return the gateway of a home; `urls` replace the configured upstreams."""
    settings = app.settings
    options = Options(
        alias=settings.gateway.alias,
        capture=settings.gateway.capture,
        timeout_seconds=settings.gateway.timeout_seconds,
        max_body_bytes=settings.gateway.max_body_bytes,
        feedback_per_minute=settings.gateway.feedback_per_minute,
        shows_asides=settings.shows_asides,
        control_tokens=settings.gateway.control_tokens,
        control_strings=settings.gateway.list_control_strings(),
        ships=app.on_kafka,
        shows=headers(),
    )
    recorder = Recorder(app.spool, app.blobs, app.keys if settings.privacy.seal else None)
    engines = Upstreams(upstreams(settings, urls))
    routing = Routing(
        options.alias,
        settings.serving.missing,
        settings.sessions.idle_seconds,
        settings.serving.max_session_age_seconds,
    )
    keys = build_client_keys(settings)
    pages = [status_page(settings, keys)]
    return Gateway(recorder, engines, keys, options, make_chooser, redaction(app), routing, pages)


def redaction(app: "App") -> Redaction:
    """Return the redaction rules. The home's salt is made if there are rules."""
    rules = app.settings.redaction.build_rules()
    return Redaction(rules, salt(app.home)) if rules else Redaction()


def salt(home: Path) -> bytes:
    """Return the secret of a home's pseudonyms: 32 bytes in the file `salt`, made on first use.
    Raises LogReadOnly where it cannot be made, LogCorrupt for other content."""
    path = home / "salt"
    if not path.exists():
        _make_salt(path)
    data = path.read_bytes()
    if len(data) != _SALT_BYTES:
        raise LogCorrupt(
            f"{path} holds {len(data)} bytes and not {_SALT_BYTES}; restore it, or remove it and "
            "get other pseudonyms from then on"
        )
    return data


def _make_salt(path: Path) -> None:
    temporary = path.with_name(f".salt.{new_id()}")
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_SALT_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # If several processes start at once, the first one's salt stays.
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        raise LogReadOnly(
            f"{path} cannot be made: {error.strerror}; make its folder writable"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


class RedactingFormatter(logging.Formatter):
    """Formats lines of the program's log, and applies the redaction rules to them."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__("%(levelname)s:%(name)s:%(message)s")
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the traceback if there is one."""
        return self._redaction.redact_text(super().format(record))


def _log_to_stderr(redaction: Redaction) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(redaction))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def serve(
    app: "App", urls: Sequence[str], host: str | None, port: int | None, make_chooser: MakeChooser
) -> None:
    """Serve the gateway until a signal stops it. Raises ConfigurationError, LogError."""
    settings = app.settings.gateway
    host = settings.host if host is None else host
    address = address_of(host)
    check_reach(host, address, bool(settings.keys))
    instance = gateway(app, urls, make_chooser)
    _log_to_stderr(redaction(app))
    with (
        _bind_socket(address, settings.port if port is None else port) as bound,
        follow_routes(app, instance.context.routing, instance.metrics),
        report_in_background(app),
    ):
        config = uvicorn.Config(
            instance.app,
            http=partial(PatientConnection, seconds=settings.client_seconds),  # type: ignore[arg-type]
            ws="none",
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            log_level="warning",
            log_config=None,  # uvicorn's lines go to this program's log
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEPT_SECONDS,
            timeout_graceful_shutdown=_CUT_SECONDS,
        )
        grace = settings.grace_seconds - _CUT_SECONDS
        server = _Server(config, instance, grace)
        # A signal before uvicorn listens counts too; uvicorn raises signals again at its end for
        # the earlier handler.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.handle_exit)
        url = f"http://{_format_host(host)}:{bound.getsockname()[1]}/v1"
        print(f"kintsugi gateway at {url}", file=sys.stderr, flush=True)
        uvloop.run(server.serve(sockets=[bound]))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stopped: Gateway, grace_seconds: float) -> None:
        super().__init__(config)
        self._gateway = stopped
        self._grace_seconds = grace_seconds
        self._until: float | None = None
        self._pulse = systemd.Pulse()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        systemd.notify_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the grace period on the first signal; end it on a second one."""
        if self._until is not None:
            super().handle_exit(sig, frame)
            return
        systemd.notify_stop()
        self._gateway.stop()
        self._until = time.monotonic() + self._grace_seconds

    async def on_tick(self, counter: int) -> bool:
        self._pulse.beat()
        if self._until is not None:
            over = not self._gateway.busy or time.monotonic() >= self._until
            self.should_exit = self.should_exit or over
        return await super().on_tick(counter)


def address_of(host: str) -> str:
    """Return the one address to listen on. Raises ConfigurationError for a host without one."""
    try:
        addresses = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"gateway.host is {host!r}, which has no address ({error}); name an address of this "
            "machine"
        ) from error
    if not addresses:
        raise ConfigurationError("gateway.host is empty; name an address of this machine")
    # Of several addresses, as of localhost, take the first of IPv4, which every client tries.
    return str(min(addresses, key=lambda entry: entry[0] != socket.AF_INET)[-1][0])


def check_reach(host: str, address: str, keys: bool) -> None:
    """Raise ConfigurationError if other machines can reach `address` and there are no keys."""
    if keys or ip_address(address).is_loopback:
        return
    named = host if host == address else f"{host} ({address})"
    raise ConfigurationError(
        f"gateway.host is {named}, which others can reach, and gateway.keys is empty; mint a key "
        "with kintsugi key NAME, or listen on 127.0.0.1"
    )


def build_client_keys(settings: Settings) -> ClientKeys:
    """Return the clients' keys from the setting `gateway.keys`."""
    keys = [ClientKey(key.name, key.sha256, frozenset(key.scopes)) for key in settings.gateway.keys]
    return ClientKeys(keys)


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family)
    except OSError as error:
        raise LogUnavailable(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another"
        ) from error
    # Connections inherit TCP_NODELAY. asyncio does not set it for sockets of create_server, and
    # without it an answer in two writes would wait 40 ms for the client.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
