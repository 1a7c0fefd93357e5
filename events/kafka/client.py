"""Builds and closes clients of kafka-python 3.0, and translates its errors. Its traps:

- A constructor bootstraps at once; when that fails, it leaves its I/O thread running and gives no
  reason. `build` first checks that the broker admits us (preflight.py) and closes what is left.
- `KafkaProducer.close` gives up on its own flush while the broker is down and then closes nothing.
- A call may never return: a batch that cannot be decoded makes the next `poll` spin, and blocking
  calls have no deadline. Python cannot end the thread, so `Watchdog` ends the process; a supervisor
  restarts it from positions that are stored.
- Without the C extension crc32c it is 10 to 30 times slower: `require_crc32c` refuses to start.
"""

import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import kafka.errors as theirs
from kafka.net.compat import KafkaNetClient
from kafka.record import util as record_util

from events.errors import (
    AheadOfLog,
    KintsugiError,
    LogCorrupt,
    LogError,
    LogReadOnly,
    LogUnavailable,
    TooLarge,
)
from events.kafka.preflight import greet, speaks_tls
from events.streams import STREAMS

EXIT_STUCK: Final = 70
"""Exit status when a call of kafka-python did not return (EX_SOFTWARE)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Connection:
    """Address of the broker, and names of its topics."""

    bootstrap_servers: str
    security: Mapping[str, str] = field(default_factory=dict)
    """Settings that kafka-python takes: security_protocol, sasl_*, ssl_*."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Stream -> topic, where the topic is not the one in events/streams.py."""
    timeout_seconds: float = 10.0
    """Seconds to wait for one request, and for one bootstrap."""

    def topic(self, stream: str) -> str:
        """Return the topic of a stream."""
        return self.topics.get(stream, STREAMS[stream].topic)

    @property
    def timeout_ms(self) -> int:
        """Return the timeout in milliseconds."""
        return int(self.timeout_seconds * 1000)

    def build(self, kind: Callable[..., Any], **settings: Any) -> Any:
        """Return a new client of class `kind`. Raises LogUnavailable and leaves nothing open."""
        self._probe()
        clients: list[Any] = []

        def network(**inner: Any) -> Any:
            clients.append(KafkaNetClient(**inner))
            return clients[-1]

        common: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "bootstrap_timeout_ms": self.timeout_ms,
            "request_timeout_ms": self.timeout_ms,
            "kafka_client": network,
        }
        try:
            return kind(**{**common, **self.security, **settings})
        except BaseException as error:
            for client in clients:
                client.close()
            if isinstance(error, theirs.KafkaError):
                self._check_protocol(error)
                raise translate_error(error, f"connecting to {self.bootstrap_servers}") from error
            raise

    def _probe(self) -> None:
        """Raise LogUnavailable with the cause if no broker admits this client; cheap."""
        last: OSError | LogUnavailable | None = None
        for host, port in self._servers():
            try:
                opened = socket.create_connection((host, port), self.timeout_seconds)
                return greet(opened, host, self.security)
            except (OSError, LogUnavailable) as error:
                last = error
        if isinstance(last, LogUnavailable):
            raise last
        raise LogUnavailable(
            f"no broker listens at {self.bootstrap_servers} ({last}); it is tried again"
        )

    def _check_protocol(self, error: theirs.KafkaError) -> None:
        """Raise LogUnavailable with PLAINTEXT, to which TLS and SASL listeners do not answer."""
        if self.security.get("security_protocol", "PLAINTEXT") != "PLAINTEXT":
            return
        for host, port in self._servers():
            wanted = "TLS" if speaks_tls(host, port, self.timeout_seconds) else "SASL, perhaps"
            raise LogUnavailable(
                f"{host}:{port} gives no answer ({error}): it wants {wanted}, and "
                "kafka.security.protocol is PLAINTEXT; set it to that of its listener; it is tried "
                "again"
            ) from error

    def _servers(self) -> Iterator[tuple[str, int]]:
        for server in self.bootstrap_servers.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit():
                raise LogError(f"bootstrap server {server!r} must be written host:port")
            yield host.strip("[]"), int(port)


def require_crc32c() -> None:
    """Raise LogError if crc32c is not installed, because the checksum in Python is too slow."""
    if record_util.crc32c_c is None:
        raise LogError(
            "crc32c is not installed and kafka-python would be 10 to 30 times slower; install "
            "kafka-python[crc32c]"
        )


def translate_error(error: BaseException, doing: str) -> KintsugiError:
    """Return kintsugi's error for a kafka-python error, by its type. LogUnavailable means that a
    retry may help: for time-outs, connections, retriable errors, unknown errors while producing."""
    text = f"{doing}: {error}"
    match error:
        case KintsugiError():
            return error
        case theirs.MessageSizeTooLargeError() | theirs.RecordListTooLargeError():
            return TooLarge(f"{text}; raise the topic's max.message.bytes to its default")
        case theirs.LogTruncationError():
            return AheadOfLog(f"{text}; the broker lost its newest records: restore them")
        case theirs.CorruptRecordError():
            return LogCorrupt(f"{text}; restore the segment from a replica or an export")
        case theirs.AuthorizationError() | theirs.SaslAuthenticationFailedError():
            return LogReadOnly(f"{text}; give these credentials the permission")
        case theirs.UnsupportedVersionError() | theirs.KafkaConfigurationError():
            return LogError(f"{text}; use a broker and settings that kafka-python 3.0 knows")
        case _:
            return LogUnavailable(f"{text}; it is tried again")


def close_quietly(client: Any, **how: Any) -> None:
    """Close a client that may be broken; log an error instead of raising it."""
    try:
        client.close(**how)
    except Exception as error:
        log.warning("closing a %s failed: %r", type(client).__name__, error)


def abandon_producer(producer: Any) -> None:
    """Close a producer at once; unsent records fail. The producer's own `close` first waits for a
    flush and, on a time-out, leaves its thread and buffers."""
    producer._sender.force_close()
    close_quietly(producer, timeout=5)


class Watchdog:
    """Ends the process if a watched call has not returned after `limit_seconds`. It counts its own
    ticks of a second, so the time during which the process was stopped does not count."""

    def __init__(
        self, limit_seconds: int = 60, on_stuck: Callable[[str], None] | None = None
    ) -> None:
        self.limit_seconds = limit_seconds
        self._on_stuck = on_stuck or _exit
        self._watched: dict[int, list[Any]] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    @contextmanager
    def watch(self, what: str) -> Iterator[None]:
        """Watch the calls within the `with` block; `what` names them in the message."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
            self._watched[threading.get_ident()] = [what, 0]
        try:
            yield
        finally:
            with self._guard:
                self._watched.pop(threading.get_ident(), None)

    def close(self) -> None:
        """End the watching thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(1.0):
            with self._guard:
                for watched in self._watched.values():
                    watched[1] += 1
                stuck = [w for w, ticks in self._watched.values() if ticks >= self.limit_seconds]
            if stuck:
                self._on_stuck(f"{stuck[0]} has not returned for {self.limit_seconds} s")
                return


def _exit(why: str) -> None:
    print(f"kintsugi: {why}; this process ends, its positions are stored", file=sys.stderr)
    for identity, frame in sys._current_frames().items():
        print(f"thread {identity}:\n{''.join(traceback.format_stack(frame)[-6:])}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_STUCK)
