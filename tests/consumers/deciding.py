"""Decisions about adapters and routes, for tests: written in one line each, appended and folded."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Engine

from consumers import database
from consumers.reads import serving
from consumers.reads.serving import RouteTable, Step
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.gate import Decision as Verdict
from events.gate import GateReport
from events.jobs import PanelRouter, RouterOption
from events.learning import Decision
from events.log import Entry
from events.memory import MemoryLog
from events.serving import (
    AdapterEvaluated,
    AdapterMoved,
    AdapterProduced,
    AdapterStaged,
    GateDecided,
    Panel,
    PanelComposed,
    PanelMember,
    PassRates,
    RouteChanged,
    RouteShare,
    Why,
)
from tests.consumers.folding import at, fold


def produced(adapter: str, alias: str = "agent", base: str = "base") -> AdapterProduced:
    return AdapterProduced(
        adapter=adapter, alias=alias, base=base, sha256="0" * 64, path=f"/adapters/{adapter}",
        capability="cancel", job="job-1", origin="job",
    )  # fmt: skip


def composed(
    panel: str,
    members: Mapping[str, str | None],
    *,
    router: str | None = None,
    alias: str = "agent",
    base: str = "base",
    cycle: str | None = None,
) -> PanelComposed:
    """A panel (skill -> adapter) whose router was trained, or is the base."""
    options = tuple(
        RouterOption(skill=skill, label=f"L{n}", token=n, description=skill or "none")
        for n, skill in enumerate((*members, None))
    )
    content = Panel(
        members=tuple(PanelMember(skill=skill, adapter=name) for skill, name in members.items()),
        router=PanelRouter(adapter=router, options=options),
    )
    return PanelComposed(
        adapter=panel, alias=alias, base=base, sha256="1" * 64, panel=content, cycle=cycle
    )


def staged(adapter: str, *replicas: str) -> AdapterStaged:
    at_all = replicas or ("http://replica-1/v1",)
    return AdapterStaged(adapter=adapter, replicas=at_all, distance=0.01, from_base=0.5)


def evaluated(adapter: str, incumbent: str | None = None) -> AdapterEvaluated:
    rates = PassRates(incumbent=0.5, candidate=0.75)
    return AdapterEvaluated(
        adapter=adapter, incumbent=incumbent, environment="shop", tasks=64, trials=4,
        pass_hat_1=rates,
    )  # fmt: skip


def decided(adapter: str, decision: Verdict, incumbent: str | None = None) -> GateDecided:
    report = GateReport(decision=decision, test="sign_flip", alpha=0.05, tasks=64, checks=())
    return GateDecided(adapter=adapter, alias="agent", incumbent=incumbent, report=report)


def routed(
    why: Why,
    shares: Mapping[str | None, float],
    *,
    shadow: str | None = None,
    alias: str = "agent",
    base: str = "base",
    holdout: float = 0.0,
) -> RouteChanged:
    parts = tuple(RouteShare(adapter=name, share=share) for name, share in shares.items())
    return RouteChanged(
        alias=alias, base=base, shares=parts, shadow=shadow, why=why, holdout=holdout
    )


def moved(adapter: str, state: str, reason: str = "") -> AdapterMoved:
    return AdapterMoved.model_validate({"adapter": adapter, "state": state, "reason": reason})


def passed(adapter: str, incumbent: str | None = None) -> tuple[Decision, ...]:
    """The way of an adapter up to a passed gate."""
    return (
        produced(adapter),
        staged(adapter),
        evaluated(adapter, incumbent),
        decided(adapter, "PROMOTE", incumbent),
    )


def decision(data: Decision, name: str, cause: str | None = None, second: int = 0) -> Entry:
    """The event, with an id made from `name`."""
    envelope = Envelope(
        id=id_of(name), type=data.TYPE, version=data.VERSION, subject=data.key(),
        time=at(second), cause=cause,
    )  # fmt: skip
    return encode(envelope, data, recorded_ms=1).entry


def id_of(name: str) -> str:
    """The id of the event that was made from `name`."""
    return derive_id("test", name)


class Control:
    """A log of decisions and the tables that are folded from it."""

    def __init__(self, engine: Engine, log: MemoryLog | None = None) -> None:
        self.engine = engine
        self.log = MemoryLog() if log is None else log
        self.count = 0

    def decide(self, *decisions: Decision) -> list[Step]:
        """Append and fold; what the last of them made of the tables. Events are named `0`, `1`,
        ..., one second after the other."""
        for data in decisions:
            self.log.append([decision(data, str(self.count), second=self.count)])
            self.count += 1
        fold(self.log, self.engine)
        with database.read_transaction(self.engine) as connection:
            return serving.steps_of(connection, id_of(str(self.count - 1)))

    def refused(self, *decisions: Decision) -> str:
        """Why the last of them changed nothing."""
        (step,) = self.decide(*decisions)
        assert step.refused is not None, f"{decisions[-1]} was not refused"
        return step.refused

    def table(self) -> RouteTable:
        with database.read_transaction(self.engine) as connection:
            return serving.route_table(connection)

    def states(self) -> dict[str, str]:
        return {row.adapter: row.state.value for row in self.table().adapters}

    def shares(self, alias: str = "agent") -> dict[str | None, float]:
        row = self.table().route(alias)
        assert row is not None, f"{alias} has no route"
        return {part.adapter: part.share for part in row.standing.shares}

    def before(self, alias: str = "agent") -> Sequence[str | None]:
        """To whom a rollback may go back."""
        row = self.table().route(alias)
        assert row is not None, f"{alias} has no route"
        return row.standing.before
