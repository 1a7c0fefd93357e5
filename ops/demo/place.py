"""The home of a demo, with a configuration of its own and its customers' mixture.

The configuration is made from kintsugi.toml beside this module, the customers' mixture, the
services (embedded.toml; ops/stack has others), free ports and new keys. An existing home stays as
it is, so that a killed demo continues.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Final

from daemon.config.settings import CONFIG_VARIABLE, PREFIX, Settings, load
from daemon.engine.reference.weights import CHECKPOINT
from events import private
from events.errors import KintsugiError
from events.files import replace_file
from ops.demo.mixture import MIX, read_mixture
from ops.processes import find_ports
from producers.gateway.privacy.keys import hash_key, mint_key

ALIAS: Final = "agent"
_HERE: Final = Path(__file__).parent
ROOT: Final = _HERE.parents[1]
EMBEDDED: Final = _HERE / "embedded.toml"
SEEDS: Final = 64
"""Number of seeds whose customers and held-out tasks are disjoint."""
_MIXTURE: Final = "mix.json"
_SIZE: Final = "size.json"
_BEGUN: Final = frozenset({"customers.key", "watcher.key", _SIZE, _MIXTURE, "tmp-kintsugi.toml"})


class PlaceConflict(KintsugiError):
    """A folder is not a home of a demo, or the home of another demo."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings that space a home's cycles in time."""

    cooldown_seconds: float
    backoff: float
    canary_seconds: float


ONE_CYCLE: Final = Pace(cooldown_seconds=600.0, backoff=2.0, canary_seconds=86400.0)
SEVERAL_CYCLES: Final = Pace(cooldown_seconds=20.0, backoff=1.0, canary_seconds=1800.0)
"""Pace of several cycles: the next one begins after enough customers, whatever the last one's
outcome. The cool-down lets the end of a cycle be seen before the next begins."""


@dataclass(frozen=True, slots=True)
class Size:
    """Amount of work in a demo."""

    min_rollouts: int
    tasks: int
    rollouts: int
    trials: int
    """Trials per task before the gate; the next three fields are about the gate too."""
    pilot_tasks: int
    least_tasks: int
    most_tasks: int
    held_out: int
    """Held-out tasks per kind."""
    min_failures: int = 8
    seed: int = 0
    """Seed of customers and held-out tasks, below SEEDS."""
    cycles: int = 1

    @property
    def pace(self) -> Pace:
        """Return the spacing of its cycles."""
        return ONE_CYCLE if self.cycles == 1 else SEVERAL_CYCLES


SIZES: Final[Mapping[str, Size]] = {
    "whole": Size(
        min_rollouts=240, tasks=896, rollouts=1280, trials=2, pilot_tasks=24, least_tasks=64,
        most_tasks=256, held_out=64,
    ),
    "small": Size(
        min_rollouts=96, tasks=12, rollouts=128, trials=2, pilot_tasks=4, least_tasks=8,
        most_tasks=8, held_out=6,
    ),
    "least": Size(
        min_rollouts=32, tasks=4, rollouts=128, trials=2, pilot_tasks=2, least_tasks=4,
        most_tasks=4, held_out=2, min_failures=1,
    ),
}  # fmt: skip
"""Name -> size. `small` and `least` only show that everything runs: they learn too little."""


@dataclass(frozen=True, slots=True)
class Place:
    """The home of a demo, with its files."""

    home: Path

    @property
    def config(self) -> Path:
        """Return the path of its configuration."""
        return self.home / "kintsugi.toml"

    @property
    def key(self) -> str:
        """Return the customers' API key."""
        return (self.home / "customers.key").read_text()

    def page(self, port: int) -> str:
        """Return the URL of the status page with the key of a watcher."""
        key = (self.home / "watcher.key").read_text()
        return f"http://watcher:{key}@127.0.0.1:{port}/status"

    @property
    def size(self) -> Size:
        """Return its amount of work."""
        return Size(**json.loads((self.home / _SIZE).read_text()))

    @property
    def mix(self) -> Mapping[str, float]:
        """Return kind of task -> share of the customers; `MIX` if the home has no file for it."""
        file = self.home / _MIXTURE
        return read_mixture(file) if file.exists() else MIX

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of its processes, without the operator's kintsugi variables."""
        clean = {name: value for name, value in os.environ.items() if not _is_ours(name)}
        # Several processes share a few cores, so more threads would only wait.
        own = {CONFIG_VARIABLE: str(self.config), f"{PREFIX}HOME": str(self.home)}
        return {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **own}

    def settings(self) -> Settings:
        """Give this process the environment of the home's processes, and load their settings."""
        for name in [name for name in os.environ if _is_ours(name)]:
            del os.environ[name]
        os.environ.update(self.variables)
        return load()


def make(
    home: Path,
    size: Size,
    *,
    mix: Mapping[str, float] = MIX,
    fresh: bool = False,
    services: Path = EMBEDDED,
) -> Place:
    """Return the home. Make it if it is missing; with `fresh`, empty and make it again. The file
    `services` has the settings of services. Raise PlaceConflict."""
    place = Place(home.absolute())
    if fresh:
        _clear(place)
    if place.config.exists():
        return place
    if home.exists() and not {path.name for path in home.iterdir()} <= _BEGUN:
        raise PlaceConflict(f"{home} is not empty and no home of a demo; name another with --home")
    # A database server with its own user passes through it to its data.
    private.make_folder(home, private.FOLDER if services == EMBEDDED else private.PASSAGE)
    customers, watcher = _write_key(home / "customers.key"), _write_key(home / "watcher.key")
    (home / _SIZE).write_text(json.dumps(asdict(size)))
    (home / _MIXTURE).write_text(json.dumps(dict(mix), indent=1))
    gateway, engine, kafka, postgres = find_ports(4)
    # Keys outside any table come first in TOML, and only services have them.
    text = Template(services.read_text() + (_HERE / "kintsugi.toml").read_text()).substitute(
        asdict(size) | asdict(size.pace), checkpoint=CHECKPOINT, traffic=_inline(mix),
        gateway_port=gateway, engine_port=engine, kafka_port=kafka, postgres_port=postgres,
        key=hash_key(customers), watcher=hash_key(watcher),
    )  # fmt: skip
    # Written last and atomically: a home with a configuration is complete.
    replace_file(place.config, text.encode())
    return place


def check_request(
    place: Place, mix: Mapping[str, float] | None, cycles: int | None, seed: int
) -> None:
    """Check that options fit a home; None always fits. `seed` is checked only with one of the
    others. Raise PlaceConflict."""
    remedy = "name another home with --home, or begin anew with --fresh"
    if mix is not None and dict(mix) != dict(place.mix):
        raise PlaceConflict(
            f"{place.home} has customers of another mixture ({_inline(place.mix)}); leave --mix "
            f"out to go on with it, {remedy}"
        )
    if cycles is not None and cycles != place.size.cycles:
        raise PlaceConflict(
            f"{place.home} was made for --cycles {place.size.cycles}, not {cycles}; go on with "
            f"that, {remedy}"
        )
    if (mix is not None or cycles is not None) and seed != place.size.seed:
        raise PlaceConflict(
            f"{place.home} was made for --seed {place.size.seed}, not {seed}; go on with that, "
            f"{remedy}"
        )


def _write_key(secret: Path) -> str:
    key = mint_key()
    secret.touch(mode=0o600)
    secret.write_text(key)
    return key


def _clear(place: Place) -> None:
    if place.home.exists() and any(place.home.iterdir()):
        if not (place.home / _SIZE).exists():
            raise PlaceConflict(f"{place.home} is no home of a demo, so it is not removed")
        # If killed here, the home has no configuration: it cannot continue, but may be removed.
        place.config.unlink(missing_ok=True)
        for path in place.home.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _SIZE:
                path.unlink()
        shutil.rmtree(place.home)


def _inline(shares: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{kind} = {share}" for kind, share in shares.items()) + " }"


def _is_ours(name: str) -> bool:
    return name.upper().startswith(PREFIX)
