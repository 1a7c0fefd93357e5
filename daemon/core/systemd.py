"""Notifications to the service manager that started this process: ready, alive, stopping. systemd
(Type=notify, WatchdogSec=) names a socket in $NOTIFY_SOCKET and reads lines from it. Without one
nothing is sent. A role does not end because the socket is no longer read."""

import logging
import os
import socket
import time
from typing import Final

SOCKET: Final = "NOTIFY_SOCKET"
_LIMIT: Final = "WATCHDOG_USEC"

log = logging.getLogger(__name__)


def notify_ready() -> None:
    """Tell the service manager that this process is ready."""
    _tell("READY=1")


def notify_stop() -> None:
    """Tell the service manager that this process was asked to stop and is finishing."""
    _tell("STOPPING=1")


class Pulse:
    """Tells the service manager, often enough for its watchdog, that a loop still runs."""

    def __init__(self) -> None:
        limit = os.environ.get(_LIMIT)
        self._every = int(limit) / 3e6 if limit else None
        self._last = 0.0

    def beat(self) -> None:
        """Tell that the loop runs, if the watchdog needs it now. Call once in each round."""
        now = time.monotonic()
        if self._every is not None and now - self._last >= self._every:
            self._last = now
            _tell("WATCHDOG=1")


def _tell(line: str) -> None:
    address = os.environ.get(SOCKET)
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.sendto(line.encode(), address)
    except OSError as error:
        log.warning("%s cannot be told %s: %s", os.environ[SOCKET], line, error)
