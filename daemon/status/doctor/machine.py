"""Checks of the machine: installed packages, and a writable disk."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from daemon.status.doctor.finding import Finding
from events import private
from events.envelope import new_id

if TYPE_CHECKING:
    from daemon.core.app import App

PACKAGES: Final = ("events", "envs", "producers", "consumers", "migrations", "daemon")

OLDEST_SQLITE: Final = (3, 35, 0)
"""Oldest SQLite with UPDATE ... RETURNING, with which the embedded log takes its offsets."""

FREE_BYTES: Final = 1 << 30
"""A disk with fewer free bytes is a problem: a busy log fills it within hours."""

_TRIED_BYTES: Final = 1 << 20


def packages(_: "App") -> Finding:
    """Check that no other distribution installs packages with this project's names."""
    problems = list(_shadows())
    if problems:
        return False, "; ".join(problems) + "; install kintsugi in an environment of its own"
    return True, f"{', '.join(PACKAGES)} are ours"


def _shadows() -> Iterator[str]:
    """Yield this project's packages that another distribution provides: the names are common
    ones."""
    ours = Path(__file__).parents[3]
    owners = packages_distributions()
    for name in PACKAGES:
        spec = find_spec(name)
        folder = Path(spec.origin).parent.parent if spec is not None and spec.origin else None
        if folder != ours:
            yield f"package {name} is imported from {folder or 'nowhere'} instead of {ours}"
        for owner in sorted(set(owners.get(name, [])) - {"kintsugi"}):
            yield f"distribution {owner} brings a package {name} too"


def python(_: "App") -> Finding:
    """Check the interpreter's version."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    return sys.version_info >= (3, 11), f"{version} (3.11 or later)"


def sqlite(_: "App") -> Finding:
    """Check SQLite's version."""
    needed = ".".join(str(part) for part in OLDEST_SQLITE)
    return (
        sqlite3.sqlite_version_info >= OLDEST_SQLITE,
        f"{sqlite3.sqlite_version} ({needed} or later)",
    )


def home(app: "App") -> Finding:
    """Check that the home can be written to and has free space."""
    home = app.home
    if not os.access(home, os.W_OK | os.X_OK):
        return False, f"{home} is not writable; make it so, or name another with --home"
    free = shutil.disk_usage(home).free
    detail = f"{home}, {free / (1 << 30):,.1f} GiB free"
    try:
        _write(home / f".doctor.{new_id()}")
    except OSError as error:
        return False, (
            f"{detail}, and a megabyte cannot be written ({error.strerror or error}); free at "
            "least 1 GiB, or mend the disk"
        )
    return free >= FREE_BYTES, detail if free >= FREE_BYTES else f"{detail}; free at least 1 GiB"


def modes(app: "App") -> Finding:
    """Check that only the home's owner may read persons' words."""
    home, adapters = app.home, app.settings.adapters
    if not private.passable_to_others(home):
        return True, f"nobody else gets into {home}"
    names = sorted(
        path.name
        for path in home.iterdir()
        if path != adapters and not path.is_symlink() and private.open_to_others(path)
    )
    if names:
        named = ", ".join(names)
        return False, (
            f"everybody on this machine may read {named} in {home}; close them with "
            f"chmod -R o-rwx, in {home}: {' '.join(names)}"
        )
    listed = (
        "; everybody may list it (chmod o-rw closes it)" if private.open_to_others(home) else ""
    )
    return True, f"nobody else may read what is in {home}, but for its adapters{listed}"


def _write(path: Path) -> None:
    """Write a file: only writing shows that a disk is full or mounted read-only. Raise OSError."""
    try:
        with path.open("xb") as file:
            file.write(bytes(_TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)


def blobs(app: "App") -> Finding:
    """Check the folder of large bodies."""
    folder = app.blobs.folder
    if not folder.exists():
        return True, f"{folder} will be made when a body needs it"
    writable = os.access(folder, os.W_OK | os.X_OK)
    return writable, f"{folder}" if writable else f"{folder} is not writable; make it so"


def crc32c(_: "App") -> Finding:
    """Check that checksums of Kafka's batches are not computed by slow Python code."""
    from events.kafka.client import require_crc32c

    require_crc32c()
    return True, "checksums are computed in C"
