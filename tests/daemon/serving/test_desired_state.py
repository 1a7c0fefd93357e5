"""Which adapters should be loaded, and what leads there: for any situation at all."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from consumers.folds.routing import RouteState
from consumers.reads.gateways import GatewayState, Report
from consumers.reads.serving import AdapterRow, OperatorActionLine, RouteRow, RouteTable
from daemon.serving.desired_state import (
    PIN,
    UNPIN,
    Delete,
    Load,
    Note,
    ReplicaContents,
    Retention,
    Retire,
    Situation,
    Unload,
    read_pins,
    roles,
    steps,
)
from events.envelope import timestamp
from events.jobs import PanelRouter, RouterOption
from events.lifecycle import LOADED, NEXT, RETIRED, SERVING, State
from events.serving import Panel, PanelMember, RouteShare

NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
KEEPING: Final = Retention(timedelta(hours=4), timedelta(hours=1), 1)
R1, R2 = "http://r1/v1", "http://r2/v1"


def adapter(name: str, state: State, **fields: Any) -> AdapterRow:
    given: dict[str, Any] = {
        "adapter": name, "alias": "agent", "base": "base", "sha256": "0" * 64, "path": f"/{name}",
        "capability": None, "job": None, "origin": "push", "state": state, "reason": "",
        "replicas": (R1,) if state in LOADED else (), "distance": 0.0, "from_base": 1.0,
        "incumbent": None, "gate": None, "since": timestamp(NOW - timedelta(minutes=1)),
        "cause": "c", "offset": 5,
    }  # fmt: skip
    return AdapterRow(**{**given, **fields})


def route(
    *shares: str | None, shadow: str | None = None, before: tuple[str | None, ...] = ()
) -> RouteRow:
    parts = tuple(RouteShare(adapter=name, share=1 / len(shares)) for name in shares)
    standing = RouteState("base", parts, shadow, shares[0], before)
    return RouteRow("agent", standing, "operator", "", None, "c", 5)


def holding(*names: str, url: str = R1, base: str = "base") -> ReplicaContents:
    return ReplicaContents(url, base, frozenset(names))


def gateway(position: int = 9, **open_sessions: int) -> GatewayState:
    return GatewayState(Report("g", "h", position, {}, open_sessions), 0.1, 60.0)


def situation(*rows: AdapterRow, **fields: Any) -> Situation:
    table = RouteTable(9, tuple(fields.pop("routes", ())), rows)
    given: dict[str, Any] = {
        "table": table, "gateways": (), "pinned": frozenset(), "replicas": (holding(),),
        "lost": frozenset(), "now": NOW, "keeping": KEEPING,
    }  # fmt: skip
    return Situation(**{**given, **fields})


def test_what_serves_is_wanted_for_what_it_is() -> None:
    rows = [
        adapter("p", State.PROMOTED), adapter("c", State.CANARY), adapter("s", State.GATED),
        adapter("shown", State.STAGED), adapter("d", State.DRAINING, offset=6),
        adapter("new", State.PRODUCED), adapter("gone", State.UNLOADED),
    ]  # fmt: skip
    found = situation(
        *rows, routes=[route("p", shadow="shown", before=("d",))], pinned=frozenset({"gone"})
    )
    assert roles(found) == {
        "c": "canary", "p": "stable", "s": "staged", "shown": "shadow", "d": "kept",
    }  # fmt: skip
    assert list(roles(found))[-1] == "d", "what moved last comes last"


def test_what_somebody_holds_drains_and_is_then_kept_or_let_go() -> None:
    row = adapter("d", State.DRAINING)
    assert roles(situation(row, gateways=[gateway(d=1)])) == {"d": "draining"}
    assert roles(situation(row, gateways=[gateway(position=5)])) == {"d": "draining"}
    assert roles(situation(row, gateways=[gateway(position=6)])) == {}
    assert roles(situation(row, pinned=frozenset({"d"}))) == {"d": "pinned"}
    kept = situation(row, routes=[route(None, before=("d",))])
    assert roles(kept) == {"d": "kept"}


def test_what_never_was_on_a_replica_is_not_wanted_there() -> None:
    assert roles(situation(adapter("r", State.REJECTED, replicas=()))) == {}


def test_the_files_that_a_job_or_a_gate_may_need_stay() -> None:
    old = timestamp(NOW - timedelta(days=1))
    rows = [adapter(name, State.UNLOADED, since=old) for name in ("best", "parent", "other")]
    needed = situation(*rows, needed=frozenset({"best", "parent"}))
    assert steps(needed) == [Delete("other")]
    assert len(steps(replace(needed, needed=frozenset()))) == 3


def test_a_replica_gets_what_it_lacks_and_what_it_was_not_seen_to_answer_with() -> None:
    row = adapter("p", State.PROMOTED)
    both = (holding(), holding("p", url=R2))
    assert steps(situation(row, replicas=both)) == [Load(R1, "p"), Load(R2, "p")]
    proven = adapter("p", State.PROMOTED, replicas=(R1, R2))
    assert steps(situation(proven, replicas=both)) == [Load(R1, "p")]
    other = holding(url="http://other/v1", base="other")
    assert steps(situation(proven, replicas=(other,))) == []


def test_what_is_let_go_is_unloaded_and_then_said() -> None:
    rows = [adapter("d", State.DRAINING), adapter("half", State.PRODUCED)]
    found = situation(*rows, replicas=(holding("d", "half", "theirs", "x~probation"),))
    assert steps(found) == [
        Unload(R1, "d"), Unload(R1, "half"), Unload(R1, "x~probation"), Note("d"),
    ]  # fmt: skip


def test_files_go_only_when_nobody_can_want_them() -> None:
    old = timestamp(NOW - timedelta(hours=2))
    row = adapter("u", State.UNLOADED, since=old)
    assert steps(situation(row)) == [Delete("u")]
    assert steps(situation(row, lost=frozenset({R2}))) == []
    assert steps(situation(row, pinned=frozenset({"u"}))) == []
    assert steps(situation(row, routes=[route(None, before=("u",))])) == []
    assert steps(situation(row, routes=[route(None, before=("x", "u"))])) == [Delete("u")]
    young = adapter("u", State.UNLOADED)
    assert steps(situation(young)) == []
    assert Delete("u") not in steps(situation(row, replicas=(holding("u"),)))


def test_a_pin_holds_until_it_is_taken_off() -> None:
    def line(action: str, name: str) -> OperatorActionLine:
        return OperatorActionLine("e", "ada", action, {"adapter": name}, "", None)

    actions = [line(PIN, "a"), line(PIN, "b"), line(UNPIN, "a"), line("adapters stage", "c")]
    assert read_pins(actions) == {"b"}
    assert read_pins([*actions, line(PIN, "a")]) == {"a", "b"}


def panel(name: str, state: State, *parts: str, **fields: Any) -> AdapterRow:
    """A panel whose last part is its router."""
    *members, router = parts
    options = [(f"skill-{part}", n) for n, part in enumerate(members)] + [(None, len(members))]
    content = Panel(
        members=tuple(PanelMember(skill=f"skill-{part}", adapter=part) for part in members),
        router=PanelRouter(
            adapter=router,
            options=tuple(
                RouterOption(skill=skill, label=f"L{n}", token=n, description="")
                for skill, n in options
            ),
        ),
    )
    return adapter(name, state, path="", composition=content, **fields)


def test_the_parts_of_a_panel_are_loaded_for_the_strongest_of_its_reasons_and_theirs() -> None:
    rows = [
        panel("now", State.PROMOTED, "a", "b", "r", offset=9),
        panel("next", State.STAGED, "a", "c", "r"),
        panel("before", State.DRAINING, "d", "r", offset=8),
        panel("unstaged", State.PRODUCED, "e", "r"),
        adapter("a", State.ROLLED_BACK), adapter("b", State.UNLOADED, replicas=()),
        adapter("c", State.CANARY), adapter("d", State.STAGED, offset=3),
        adapter("e", State.UNLOADED), adapter("r", State.STAGED),
    ]  # fmt: skip
    seen = situation(*rows, routes=[route("now", before=("before",))])
    assert roles(seen) == {
        "a": "stable", "b": "stable", "c": "canary", "d": "kept", "r": "stable",
    }  # fmt: skip
    assert steps(replace(seen, replicas=(holding("c"),))) == [
        Load(R1, "d"), Load(R1, "a"), Load(R1, "b"), Load(R1, "r"),
    ]  # fmt: skip
    later = replace(adapter("d", State.STAGED), offset=10)
    assert roles(situation(rows[2], later, adapter("r", State.STAGED)))["d"] == "staged", (
        "it was staged since, for itself"
    )


def test_a_part_of_a_panel_that_is_unloaded_is_retired_unless_somebody_else_wants_it() -> None:
    gone = panel("gone", State.UNLOADED, "a", "b", "r", offset=7, replicas=())
    rows = [adapter("a", State.STAGED), adapter("b", State.PROMOTED), adapter("r", State.GATED)]
    seen = situation(gone, *rows, replicas=(holding("a", "b", "r"),))
    assert steps(seen) == [Retire("a"), Retire("r")]
    assert steps(replace(seen, pinned=frozenset({"a"}))) == [Retire("r")]
    other = panel("other", State.STAGED, "a", "r")
    assert steps(situation(gone, other, *rows, replicas=seen.replicas)) == []
    waiting = panel("waiting", State.PRODUCED, "a", "r")
    assert steps(situation(gone, waiting, *rows, replicas=seen.replicas)) == []


NAMES: Final = ("a", "b", "c")
PANELS: Final = {"p": ("a", "b"), "q": ("b", "c")}


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    states = st.sampled_from([state for state in State if state is not State.COLLECTED])
    policies = (*NAMES, *PANELS)
    some = st.frozensets(st.sampled_from(policies))
    loaded = st.frozensets(st.sampled_from(NAMES))
    rows = [
        adapter(
            name,
            draw(states),
            since=timestamp(NOW - timedelta(minutes=draw(st.integers(0, 600)))),
            offset=draw(st.integers(0, 9)),
        )
        for name in NAMES
    ]
    rows += [
        panel(
            name, draw(states), *parts,
            since=timestamp(NOW - timedelta(minutes=draw(st.integers(0, 600)))),
            offset=draw(st.integers(0, 9)),
        )
        for name, parts in PANELS.items()
        if draw(st.booleans())
    ]  # fmt: skip
    gateways = [
        gateway(draw(st.integers(0, 12)), **dict.fromkeys(draw(some), 1))
        for _ in range(draw(st.integers(0, 2)))
    ]
    urls = st.sampled_from([(R1,), (R1, R2), ()])
    before = tuple(draw(st.permutations([*policies, None]))[: draw(st.integers(0, 3))])
    return situation(
        *rows,
        gateways=gateways,
        pinned=draw(some),
        replicas=tuple(holding(*draw(loaded), url=url) for url in draw(urls)),
        lost=draw(st.sampled_from([frozenset(), frozenset({R2})])),
        routes=[route(None, before=before, shadow=draw(st.sampled_from([*policies, None])))],
    )


@given(situations())
def test_nothing_is_taken_from_whoever_uses_it(found: Situation) -> None:
    unloaded = {step.adapter for step in steps(found) if isinstance(step, Unload | Note)}
    deleted = {step.adapter for step in steps(found) if isinstance(step, Delete)}
    needed = {
        part
        for row in found.table.adapters
        if row.composition is not None and row.state in SERVING
        for part in row.composition.adapters
    }
    assert unloaded.isdisjoint(needed), "a panel that answers keeps its parts"
    held = {name for replica in found.replicas for name in replica.adapters}
    for row in found.table.adapters:
        if row.adapter in unloaded:
            assert row.state not in SERVING
            assert row.adapter not in found.pinned or row.state not in LOADED
            for seen in found.gateways if row.state in RETIRED else ():
                old = row.since is not None and row.since <= timestamp(NOW - timedelta(hours=4))
                assert seen.report.position > row.offset
                assert old or not seen.report.uses(row.adapter)
        if row.adapter in deleted:
            assert row.state is State.UNLOADED
            assert row.adapter not in held | found.pinned
            assert not found.lost


@given(situations())
def test_a_few_rounds_finish_what_the_first_began_and_then_there_is_nothing_to_do(
    found: Situation,
) -> None:
    """On replicas that obey: what the first unloads the second may delete; after a panel its parts
    are retired, unloaded and deleted."""
    rounds = 5 if any(row.composition is not None for row in found.table.adapters) else 2
    for _ in range(rounds):
        found = taken(found)
    assert steps(found) == []


def taken(found: Situation) -> Situation:
    """What is there after the steps, in the order given."""
    held = {replica.url: set(replica.adapters) for replica in found.replicas}
    rows = {row.adapter: row for row in found.table.adapters}
    for step in steps(found):
        match step:
            case Load():
                held[step.replica].add(step.adapter)
                row = rows[step.adapter]
                if row.state not in RETIRED:  # of a part on its way out no event can say so
                    proven = dict.fromkeys((*row.replicas, step.replica))
                    state = State.STAGED if State.STAGED in NEXT[row.state] else row.state
                    rows[step.adapter] = replace(row, state=state, replicas=tuple(proven))
            case Unload():
                held[step.replica].discard(step.adapter)
            case Note():
                rows[step.adapter] = replace(
                    rows[step.adapter], state=State.UNLOADED, replicas=(), since=timestamp(NOW)
                )
            case Retire():
                rows[step.adapter] = replace(
                    rows[step.adapter], state=State.DRAINING, since=timestamp(NOW)
                )
            case Delete():
                del rows[step.adapter]
    return replace(
        found,
        table=replace(found.table, adapters=tuple(rows.values())),
        replicas=tuple(holding(*names, url=url) for url, names in held.items()),
    )
