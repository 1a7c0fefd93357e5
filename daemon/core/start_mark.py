"""The mark by which `kintsugi up` tells its own servers from others. An answer on a port does not
identify a process: another home's engine has other weights, and another home's gateway records
elsewhere. So each start passes its processes a mark in a variable, and they show it. It is no
secret. Not covered: a process that shows a foreign mark on purpose."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import httpx2

from events.canonical import sha256
from events.envelope import new_id

VARIABLE: Final = "STARTED_BY_KINTSUGI_UP"
# Not a setting, so without the prefix of settings.

HEADER: Final = "x-kintsugi-start"

_ASK_SECONDS: Final = 2.0
_HOME_DIGITS: Final = 12
_LISTENS: Final = "0A"
"""Linux's code for a socket that listens."""

Whose = Literal["nobody", "ready", "coming", "home", "another"]
"""`nobody`: no process answers. `ready`, `coming`: a role of this start, ready or not yet. `home`:
a role of this home that another start left behind. `another`: any other process."""


def mint(home: Path) -> str:
    """Return a new mark for a start; it begins with digits computed from the home."""
    return f"{_beginning(home)}{new_id()}"


def _beginning(home: Path) -> str:
    # A home may have several paths, through links or `..`.
    return f"{sha256(str(home.resolve()))[:_HOME_DIGITS]}-"


def headers() -> dict[str, str]:
    """Return the header with this process's mark; empty without one."""
    handed = os.environ.get(VARIABLE)
    return {HEADER: handed} if handed else {}


def whose(url: str, mark: str) -> Whose:
    """Return whose process answers at a URL: see `Whose`."""
    try:
        answer = httpx2.get(url, timeout=_ASK_SECONDS, trust_env=False)
    except httpx2.RemoteProtocolError:
        return "another"
    except httpx2.HTTPError:
        return "nobody"
    shown = answer.headers.get(HEADER, "")
    if shown == mark:
        return "ready" if answer.status_code == httpx2.codes.OK else "coming"
    same_home = shown.startswith(mark[: _HOME_DIGITS + 1])
    return "home" if same_home else "another"


def holder(port: int) -> str:
    """Describe the process that listens on a port of this machine, as far as permissions allow."""
    with suppress(OSError):
        for inode in _find_sockets(port):
            for link in Path("/proc").glob("[0-9]*/fd/*"):
                with suppress(OSError):
                    if os.readlink(link) == f"socket:[{inode}]":
                        folder = link.parents[1]
                        return f"process {folder.name} ({(folder / 'comm').read_text().strip()})"
    return "another process"


def _find_sockets(port: int) -> list[str]:
    inodes = []
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                local, state, inode = fields[1], fields[3], fields[9]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    inodes.append(inode)
    return inodes
