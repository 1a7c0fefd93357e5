"""Add a PEFT directory from any trainer to the home as an adapter: AdapterProduced.

daemon/adapters/adoption.py checks and copies the files. A repeated push of the same files gives the
same adapter. Not covered: loading (staging.py), and quality.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consumers.reads import serving
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import HomeAdapter, adopt
from daemon.core.decision_log import Act, Decisions
from daemon.core.serving_lock import hold_serving_lock
from daemon.serving.fleet import Fleet, NoReplica
from events.errors import KintsugiError
from events.lifecycle import State
from events.serving import AdapterProduced

if TYPE_CHECKING:
    from daemon.core.app import App


class PushRefusal(KintsugiError):
    """The name belongs to another adapter, or belonged to one."""


@dataclass(frozen=True, slots=True)
class PushResult:
    """Result of a push."""

    adapter: AdapterRow
    new: bool
    """False if the same files were pushed before."""


def push(
    app: "App",
    fleet: Fleet,
    source: Path,
    act: Act,
    *,
    alias: str,
    base: str | None = None,
    capability: str | None = None,
    name: str | None = None,
    checkpoint: Path | None = None,
) -> PushResult:
    """Add a PEFT directory to the home. Missing values come from the engines' settings, or the
    engines. Raises PushRefusal, NoReplica and the errors of `adopt`."""
    app.settle()
    base = base or only_base(fleet)
    with hold_serving_lock(app.home):
        adopted = adopt_for_fleet(app, fleet, source, capability or alias, name, checkpoint)
        produced = AdapterProduced(
            adapter=adopted.name, alias=alias, base=base, sha256=adopted.sha256,
            path=app.settings.adapter_paths.record(adopted.folder), capability=capability,
            origin="push",
        )  # fmt: skip
        return record_adapter(app, produced, act, "adapters push", {"from": str(source)})


def only_base(fleet: Fleet) -> str:
    """Return the base that all engines serve. Raises NoReplica if they serve none or several."""
    look = fleet.look()
    bases = {contents.base for contents in look.holding.values()}
    if len(bases) == 1:
        return bases.pop()
    detail = f"the engines serve {', '.join(sorted(bases))}" if bases else look.error_text
    raise NoReplica(f"which base the adapter is for cannot be told: {detail}; name it: --base")


def adopt_for_fleet(
    app: "App", fleet: Fleet, source: Path, kind: str, name: str | None, checkpoint: Path | None
) -> HomeAdapter:
    """Copy an adapter into the home, after checks by the engines' checkpoint and the settings'
    ranks."""
    return adopt(
        source, app.settings.adapters, checkpoint or find_checkpoint(fleet), kind=kind, name=name,
        max_rank=find_max_rank(fleet),
    )  # fmt: skip


def find_checkpoint(fleet: Fleet) -> Path | None:
    """Return the folder of the engines' base, if a setting names it."""
    started = (engine.started for engine in fleet.engines.values())
    return next((options.checkpoint for options in started if options.checkpoint), None)


def find_max_rank(fleet: Fleet) -> int | None:
    """Return the largest rank that every engine accepts, if settings name ranks."""
    started = (engine.started.max_lora_rank for engine in fleet.engines.values())
    return min((rank for rank in started if rank), default=None)


def record_adapter(
    app: "App", data: AdapterProduced, act: Act, command: str, arguments: Mapping[str, Any]
) -> PushResult:
    """Append the event of an adapter that the tables lack, by a person's command. Raises
    PushRefusal."""
    with app.reading() as connection:
        known = serving.adapter_row(connection, data.adapter)
    if known is not None:
        _check_same(app, known, data)
        return PushResult(known, new=False)
    decisions = Decisions(app)
    cause = decisions.act(act, command, {"adapter": data.adapter, **arguments})
    decisions.take(data, "produced", cause)
    with app.reading() as connection:
        return PushResult(serving.find_adapter(connection, data.adapter), new=True)


def _check_same(app: "App", known: AdapterRow, data: AdapterProduced) -> None:
    """Raise PushRefusal unless the known adapter has the values that were pushed."""
    locate = app.settings.adapter_paths.locate
    same = (known.sha256, locate(known.path), known.alias, known.base)
    if same != (data.sha256, locate(data.path), data.alias, data.base):
        raise PushRefusal(
            f"{data.adapter} is an adapter of {known.alias} on {known.base} already; give "
            "this one another --name"
        )
    if known.merge != data.merge:
        origin = known.merge.summary if known.merge else known.job or "pushed"
        raise PushRefusal(
            f"the files of {data.adapter} are in the home already, of other origin: "
            f"{origin}; give this one another --name"
        )
    if known.state is State.COLLECTED:
        raise PushRefusal(
            f"{data.adapter} was collected, and no name is used twice; give it another --name"
        )
