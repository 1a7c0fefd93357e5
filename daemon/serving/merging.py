"""Merge several adapters of the home into one: AdapterProduced, with its sources.

One adapter may replace several on an engine with few slots. It is staged and gated like any other.
Another process computes it (daemon/engine/merging.py), since that needs torch. Equal members,
weights, method and rank give the same adapter.
"""

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from consumers.reads import serving
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import HomeAdapter, intact
from daemon.core.decision_log import Act
from daemon.core.serving_lock import hold_serving_lock
from daemon.serving.desired_state import describe_user_adapter
from daemon.serving.export import iter_ancestors
from daemon.serving.fleet import Fleet
from daemon.serving.push import (
    PushResult,
    adopt_for_fleet,
    find_checkpoint,
    find_max_rank,
    record_adapter,
)
from events.errors import KintsugiError
from events.lifecycle import State
from events.serving import AdapterMerge, AdapterProduced, MergedAdapter, MergeMethod

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

KIND: Final = "merged"
"""First word of the names of merged adapters."""
_SECONDS: Final = 3600
_ROUNDING: Final = 1e-9


class MergeRefusal(KintsugiError):
    """The adapters cannot be merged."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Result of a merge."""

    pushed: PushResult
    repeated: Mapping[str, float]
    """Common ancestor of members -> how many times the merge counts its change, if not once."""


def merge_adapters(
    app: "App",
    fleet: Fleet,
    parts: Sequence[tuple[str, float]],
    act: Act,
    *,
    method: MergeMethod = "sum",
    rank: int | None = None,
    name: str | None = None,
    checkpoint: Path | None = None,
) -> MergeResult:
    """Merge adapters into one. `parts` has a name or prefix and a weight for each adapter. The
    default `rank` is the largest member's; `checkpoint` is the base's folder if no setting names
    it. Raises MergeRefusal, UnknownAdapter, PushRefusal and the errors of `adopt`."""
    app.settle()
    with app.reading() as connection:
        members = sorted(
            (
                _Member(
                    row,
                    weight,
                    _read_ancestors(connection, row.adapter),
                    app.settings.adapter_paths.locate(row.path),
                )
                for row, weight in (
                    (serving.find_adapter(connection, part), weight) for part, weight in parts
                )
            ),
            key=lambda member: member.row.adapter,
        )
    _check_members(members)
    checkpoint = checkpoint or find_checkpoint(fleet)
    _check_engines(fleet, rank, checkpoint)
    # Not inside the lock: every command that changes routes waits for the lock.
    with TemporaryDirectory(prefix=f"kintsugi-{KIND}-") as folder:
        source = Path(folder) / KIND
        for member in members:
            intact(member.folder, member.row.sha256, None, None)
        made = _compute(source, members, method, rank)
        with hold_serving_lock(app.home):
            adopted = adopt_for_fleet(app, fleet, source, KIND, name, checkpoint)
            path = app.settings.adapter_paths.record(adopted.folder)
            produced = _describe(members, adopted, path, method, made)
            arguments = {
                "members": ", ".join(f"{m.row.adapter}={m.weight:g}" for m in members),
                "method": method, "rank": str(made),
            }  # fmt: skip
            pushed = record_adapter(app, produced, act, "adapters merge", arguments)
    return MergeResult(pushed, _find_repeated(members) if method == "sum" else {})


@dataclass(frozen=True, slots=True)
class _Member:
    row: AdapterRow
    weight: float
    ancestors: tuple[str, ...]
    """Its ancestors, nearest first."""
    folder: Path

    @property
    def line(self) -> tuple[str, ...]:
        return (self.row.adapter, *self.ancestors)


def _describe(
    members: Sequence[_Member], adopted: HomeAdapter, path: str, method: MergeMethod, rank: int
) -> AdapterProduced:
    row = members[0].row
    parts = tuple(MergedAdapter(adapter=m.row.adapter, weight=m.weight) for m in members)
    return AdapterProduced(
        adapter=adopted.name, alias=row.alias, base=row.base, sha256=adopted.sha256,
        path=path, origin="push",
        merge=AdapterMerge(method=method, rank=rank, members=parts),
    )  # fmt: skip


def _read_ancestors(connection: "Connection", name: str) -> tuple[str, ...]:
    return tuple(row.adapter for row in iter_ancestors(connection, name))


def _check_members(members: Sequence[_Member]) -> None:
    """Raise MergeRefusal for members that cannot be merged."""
    without_files = [member.row.adapter for member in members if not member.row.has_files]
    if without_files:
        raise MergeRefusal(f"{without_files[0]} has no files to be merged; name its members")
    for member in members:
        if member.row.role != "agent":
            raise MergeRefusal(f"{describe_user_adapter(member.row)}; leave it out")
    names = [member.row.adapter for member in members]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise MergeRefusal(f"{twice[0]} is named twice; name it once, with its whole weight")
    if len(names) < 2:
        raise MergeRefusal(f"{names[0]} is merged with nothing; name two adapters or more")
    whose = {(member.row.alias, member.row.base) for member in members}
    if len(whose) > 1:
        rows = (member.row for member in members)
        listed = ", ".join(f"{row.adapter} of {row.alias} on {row.base}" for row in rows)
        raise MergeRefusal(f"adapters of one agent on one base are merged, and these are: {listed}")
    for member in members:
        name, heirs = member.row.adapter, [m for m in members if member.row.adapter in m.ancestors]
        if member.row.state is State.COLLECTED:
            raise MergeRefusal(f"the files of {name} were collected; leave it out")
        if member.weight == 0:
            raise MergeRefusal(f"{name} has the weight 0; leave it out")
        if member.weight > 0 and any(heir.weight > 0 for heir in heirs):
            raise MergeRefusal(
                f"{heirs[0].row.adapter} went on from {name}, whose change would count twice; "
                f"leave {name} out"
            )


def _check_engines(fleet: Fleet, rank: int | None, checkpoint: Path | None) -> None:
    """Raise MergeRefusal for a result that could not be adopted."""
    most = find_max_rank(fleet)
    if rank is not None and most is not None and rank > most:
        raise MergeRefusal(
            f"rank {rank} is more than the engines take, {most}; lower --rank, or start them with "
            "a higher --max-lora-rank and say so in upstreams[].max_lora_rank"
        )
    if checkpoint is None:
        raise MergeRefusal(
            "what a merged adapter answers is computed from its base, whose folder is not known "
            "here; name it with --checkpoint or upstreams[].checkpoint"
        )


def _find_repeated(members: Sequence[_Member]) -> dict[str, float]:
    """Return nearest common ancestor of members -> how many times its change counts, if not
    once."""
    totals: defaultdict[str, float] = defaultdict(float)
    heirs: Counter[str] = Counter()
    for member in members:
        for name in member.line:
            totals[name] += member.weight
            heirs[name] += 1
    repeated = {n: t for n, t in totals.items() if heirs[n] > 1 and abs(t - 1) > _ROUNDING}
    nearest = (next((n for n in member.line if n in repeated), None) for member in members)
    return {name: repeated[name] for name in sorted({n for n in nearest if n is not None})}


def _compute(out: Path, merged: Sequence[_Member], method: MergeMethod, rank: int | None) -> int:
    """Write the merged folder and return its rank. Raises MergeRefusal."""
    if find_spec("torch") is None:
        raise MergeRefusal("adapters are merged by torch; install kintsugi[train] here")
    members = [f"{member.folder}={member.weight!r}" for member in merged]
    options = [f"--method={method}"]
    options += [] if rank is None else [f"--rank={rank}"]
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
