"""Are planted faults found? Each is loaded and asked for its proof (place -> figures).

What loads and must not serve, and what must not even be loaded, is in planted.py.
"""

import shutil
from pathlib import Path

from daemon.adapters.compatibility import fit
from daemon.adapters.directory import BadAdapter
from daemon.adapters.fingerprint import EXACT, NotProven
from ops.bench.pieces import Json
from ops.bench.serving.place import RANK, Place
from ops.bench.serving.planted import FAULTS, REFUSED, Fault
from ops.random_adapters import Adapters, make_adapters


def detection(here: Place, folder: Path) -> Json:
    """Every fault once."""
    adapters = make_adapters(folder / "planted")
    verdicts = {plant.__name__: _detects(here, adapters, plant) for plant in FAULTS}
    refused = {name: _refuses(adapters, folder, name) for name in REFUSED}
    right = _right(here, adapters)
    return {
        "planted": len(verdicts),
        "found": sum(verdicts.values()),
        "missed": [name for name, seen in verdicts.items() if not seen],
        "refused_before_loading": refused,
        "right_ones_proven": right,
        "met": all(verdicts.values()) and all(refused.values()) and right,
    }


def _detects(here: Place, adapters: Adapters, plant: Fault) -> bool:
    before = set(here.replica.list_models().adapters)
    name, expected = plant(here.replica, adapters)
    try:
        here.replica.prove(name, expected, EXACT, adapters.others("v2"))
    except NotProven:
        return True
    finally:
        for adapter in set(here.replica.list_models().adapters) - before:
            here.replica.unload(adapter)
    return False


def _right(here: Place, adapters: Adapters) -> bool:
    """Whether what is not damaged is proven: else finding everything proves nothing."""
    here.replica.load("right", adapters["v2"])
    try:
        here.replica.prove("right", adapters.read_fingerprint("v2"), EXACT, adapters.others("v2"))
    except NotProven:
        return False
    finally:
        here.replica.unload("right")
    return True


def _refuses(adapters: Adapters, folder: Path, name: str) -> bool:
    spoiled = Path(shutil.copytree(adapters["v1-bare"], folder / name))
    REFUSED[name](spoiled)
    try:
        fit(spoiled, adapters.base, RANK)
    except BadAdapter:
        return True
    return False
