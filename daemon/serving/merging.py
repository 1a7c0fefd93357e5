"""Make one adapter of several of the home: AdapterProduced, with what it was merged of.

    result = merge_adapters(app, fleet, ["refunds-1", "rebooking-2"], act)

Where an engine has few slots, one adapter may take the place of several. What becomes of it is what
becomes of any other: it is staged, passes the gate and is given sessions, or not. The arithmetic is
done by another process (daemon/engine/merging.py), because it needs torch and this one does not.
Equal members, weights, method and rank give the same adapter again.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumers.reads import explanation, serving
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import intact
from daemon.adapters.directory import UNFINISHED
from daemon.core.decision_log import Act
from daemon.core.serving_lock import hold_serving_lock
from daemon.serving.export import iter_ancestors
from daemon.serving.fleet import Fleet
from daemon.serving.push import PushResult, adopt_for_fleet, find_max_rank, record_adapter
from events.errors import KintsugiError
from events.lifecycle import State
from events.serving import AdapterMerge, AdapterProduced, MergedAdapter, MergeMethod

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

KIND: Final = "merged"
"""How the names of merged adapters begin."""
_SECONDS: Final = 3600


class MergeRefusal(KintsugiError):
    """Adapters that cannot be merged."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of a merge."""

    pushed: PushResult
    shared: tuple[str, ...]
    """Adapters that several members went on from, so that their change counts several times."""


def merge_adapters(
    app: "App",
    fleet: Fleet,
    parts: Mapping[str, float],
    act: Act,
    *,
    method: MergeMethod = "sum",
    rank: int | None = None,
    name: str | None = None,
    checkpoint: Path | None = None,
) -> MergeResult:
    """Merge adapters, each named by the beginning of its name and with the weight of its change.
    Without a `rank` it is that at which nothing is lost, as far as engines take it; `checkpoint` is
    the folder of the base, where no setting names it. Raises MergeRefusal, UnknownAdapter,
    PushRefusal and what `adopt` raises."""
    app.settle()
    weights = list(parts.values())
    with app.reading() as connection:
        rows = [serving.find_adapter(connection, part) for part in parts]
        _check_members(rows)
        ancestors = [_read_ancestors(connection, row) for row in rows]
    _check_descent(rows, weights, ancestors)
    with hold_serving_lock(app.home), _open_place(app) as source:
        for row in rows:
            intact(Path(row.path), row.sha256, None, None)
        made = _compute(source, rows, weights, method, rank, find_max_rank(fleet))
        adopted = adopt_for_fleet(app, fleet, source, KIND, name, checkpoint)
        members = tuple(
            MergedAdapter(adapter=row.adapter, weight=weight)
            for row, weight in zip(rows, weights, strict=True)
        )
        produced = AdapterProduced(
            adapter=adopted.name, alias=rows[0].alias, base=rows[0].base, sha256=adopted.sha256,
            path=str(adopted.folder), origin="push",
            merge=AdapterMerge(method=method, rank=made, members=members),
        )  # fmt: skip
        arguments = {"members": ", ".join(row.adapter for row in rows), "method": method}
        pushed = record_adapter(app, produced, act, "adapters merge", arguments)
    return MergeResult(pushed, _find_shared(rows, ancestors))


def _read_ancestors(connection: "Connection", row: AdapterRow) -> frozenset[str]:
    tree = explanation.explain(connection, row.adapter)
    return frozenset(item.adapter for item in iter_ancestors(connection, tree))


def _check_descent(
    rows: Sequence[AdapterRow], weights: Sequence[float], ancestors: Sequence[frozenset[str]]
) -> None:
    """Raises MergeRefusal where one member holds the change of another one that is added."""
    for row, weight in zip(rows, weights, strict=True):
        for other, own in zip(rows, ancestors, strict=True):
            if row.adapter in own and weight > 0:
                raise MergeRefusal(
                    f"{other.adapter} went on from {row.adapter}, whose change would count twice; "
                    f"leave {row.adapter} out"
                )


def _find_shared(
    rows: Sequence[AdapterRow], ancestors: Sequence[frozenset[str]]
) -> tuple[str, ...]:
    """Return the adapters that several members went on from, and which are no members."""
    counts = Counter(name for own in ancestors for name in own)
    members = {row.adapter for row in rows}
    return tuple(sorted(name for name, n in counts.items() if n > 1 and name not in members))


def _check_members(rows: Sequence[AdapterRow]) -> None:
    """Raises MergeRefusal."""
    names = [row.adapter for row in rows]
    if len(set(names)) < 2:
        raise MergeRefusal(f"{names[0]} is merged with nothing; name two adapters or more")
    whose = {(row.alias, row.base) for row in rows}
    if len(whose) > 1:
        listed = ", ".join(f"{row.adapter} of {row.alias} on {row.base}" for row in rows)
        raise MergeRefusal(f"adapters of one agent on one base are merged, and these are: {listed}")
    for row in rows:
        if row.state is State.COLLECTED:
            raise MergeRefusal(f"the files of {row.adapter} were collected; leave it out")


@contextmanager
def _open_place(app: "App") -> Iterator[Path]:
    """Yield a folder beside the adapters that is not there: what was left in it by a process that
    was killed is removed, and what is written is, too."""
    store = app.settings.adapters
    store.mkdir(parents=True, exist_ok=True)
    place = store / f"{UNFINISHED}{KIND}"
    shutil.rmtree(place, ignore_errors=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _compute(
    out: Path,
    rows: Sequence[AdapterRow],
    weights: Sequence[float],
    method: MergeMethod,
    rank: int | None,
    most: int | None,
) -> int:
    """Write the merged directory; return its rank. Raises MergeRefusal."""
    if find_spec("torch") is None:
        raise MergeRefusal("adapters are merged by torch; install kintsugi[train] here")
    members = [f"{row.path}={weight!r}" for row, weight in zip(rows, weights, strict=True)]
    options = [f"--method={method}"]
    options += [] if rank is None else [f"--rank={rank}"]
    options += [] if most is None else [f"--most={most}"]
    command = [sys.executable, "-m", "daemon.engine.merging", str(out), *members, *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise MergeRefusal(f"the adapters were not merged within {_SECONDS:,} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise MergeRefusal(
            f"the adapters were not merged: {lines[-1] if lines else f'exit {done.returncode}'}"
        )
    return int(json.loads(done.stdout)["rank"])
