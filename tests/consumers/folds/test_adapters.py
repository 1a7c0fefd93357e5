"""Adapters and routes are what their events say, and nothing that they may not be."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, delete

from consumers import database
from consumers.methods.skills import old_members
from consumers.reads import rollouts, serving
from consumers.rebuild import rebuild
from consumers.runner import Runner
from consumers.tables import BOOKKEEPING, PROJECTED
from events.learning import Decision
from events.lifecycle import LOADED, NEXT, SERVING, State
from events.memory import MemoryLog
from events.serving import OperatorActed, RouteChanged
from events.streams import LEARNING
from tests.consumers.deciding import (
    Control,
    composed,
    decided,
    decision,
    evaluated,
    id_of,
    moved,
    passed,
    produced,
    routed,
    staged,
)
from tests.consumers.folding import fold, fresh, hash_of


def serving_a(engine: Engine) -> Control:
    """`a` passed its gate, was a canary and is promoted."""
    control = Control(engine)
    control.decide(
        *passed("a"), routed("canary", {"a": 0.05, None: 0.95}), routed("promoted", {"a": 1.0})
    )
    return control


def test_an_adapter_passes_its_gate_becomes_a_canary_and_is_promoted(engine: Engine) -> None:
    control = Control(engine)
    control.decide(*passed("a"))
    assert control.states() == {"a": "gated"}
    control.decide(routed("canary", {"a": 0.05, None: 0.95}))
    assert (control.states(), control.shares()) == ({"a": "canary"}, {"a": 0.05, None: 0.95})
    control.decide(routed("promoted", {"a": 1.0}))
    assert (control.states(), control.shares()) == ({"a": "promoted"}, {"a": 1.0})


def test_the_next_one_takes_its_place_and_it_drains(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"), routed("canary", {"b": 0.25, "a": 0.75}))
    assert control.states() == {"a": "promoted", "b": "canary"}
    control.decide(routed("promoted", {"b": 1.0}))
    assert control.states() == {"a": "draining", "b": "promoted"}
    control.decide(moved("a", "unloaded"), moved("a", "collected"))
    with database.read_transaction(engine) as connection:
        every = {one.adapter for one in serving.adapter_lines(connection)}
        there = {one.adapter for one in serving.adapter_lines(connection, collected=False)}
    assert every - there == {"a"}
    assert control.states() == {"b": "promoted"}, "what has no files is in no table of routes"


def test_a_rollback_goes_back_and_back_again(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"), routed("promoted", {"b": 1.0}))
    assert list(control.before()) == ["a", None]
    control.decide(routed("rollback", {"a": 1.0}))
    assert control.states() == {"a": "promoted", "b": "rolled_back"}
    assert list(control.before()) == [None]
    control.decide(routed("rollback", {None: 1.0}))
    assert control.states() == {"a": "rolled_back", "b": "rolled_back"}
    assert list(control.before()) == []
    assert "one of those before it: nobody" in control.refused(routed("rollback", {"a": 1.0}))


def test_a_rollback_of_a_canary_goes_back_to_the_incumbent(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"), routed("canary", {"b": 0.05, "a": 0.95}))
    assert list(control.before()) == ["a", None]
    control.decide(routed("rollback", {"a": 1.0}))
    assert control.states() == {"a": "promoted", "b": "rolled_back"}
    assert list(control.before()) == [None]


def test_whoever_was_taken_back_is_no_way_back(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"), routed("promoted", {"b": 1.0}))
    control.decide(routed("operator", {"a": 0.5, "b": 0.5}), routed("rollback", {"b": 1.0}))
    assert control.states() == {"a": "rolled_back", "b": "promoted"}
    assert list(control.before()) == [None]


def test_the_way_back_is_open_to_one_that_the_gate_did_not_find_better_since(
    engine: Engine,
) -> None:
    control = serving_a(engine)
    control.decide(
        *passed("b", "a"), routed("promoted", {"b": 1.0}),
        moved("a", "unloaded"), staged("a"), evaluated("a", "b"), decided("a", "REJECT", "b"),
    )  # fmt: skip
    assert control.states() == {"a": "rejected", "b": "promoted"}
    control.decide(routed("rollback", {"a": 1.0}))
    assert control.states() == {"a": "promoted", "b": "rolled_back"}


def test_a_canary_that_showed_nothing_drains(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(
        *passed("b", "a"), routed("canary", {"b": 0.05, "a": 0.95}), routed("expired", {"a": 1.0})
    )
    assert control.states() == {"a": "promoted", "b": "draining"}


def test_nobody_serves_who_did_not_pass_but_by_a_persons_will(engine: Engine) -> None:
    control = Control(engine)
    control.decide(produced("a"))
    route = {"a": 0.5, None: 0.5}
    assert control.refused(routed("operator", route)) == "a is produced and cannot join as operator"
    assert control.refused(staged("a"), routed("canary", route)).startswith("a is staged")
    control.decide(evaluated("a"), decided("a", "REJECT"))
    assert control.refused(routed("promoted", {"a": 1.0})).startswith("a is rejected")
    control.decide(routed("operator", route))
    assert (control.states(), control.shares()) == ({"a": "canary"}, route)


def test_a_gate_that_was_passed_against_another_incumbent_does_not_count(engine: Engine) -> None:
    control = Control(engine)
    control.decide(*passed("a"), *passed("b"), routed("promoted", {"a": 1.0}))
    assert control.refused(routed("promoted", {"b": 1.0})) == (
        "b was compared with base, and a is the incumbent now; evaluate it again"
    )
    assert control.refused(routed("canary", {"b": 0.05, "a": 0.95})).startswith("b was compared")
    control.decide(
        evaluated("b", "a"), decided("b", "PROMOTE", "a"), routed("promoted", {"b": 1.0})
    )
    assert control.states() == {"a": "draining", "b": "promoted"}


def test_the_base_does_not_come_back_by_a_canary(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"))
    assert "only a rollback or an operator" in control.refused(
        routed("canary", {"b": 0.05, None: 0.95})
    )
    assert control.shares() == {"a": 1.0}


def test_a_route_takes_adapters_of_its_own_alias_and_base_only(engine: Engine) -> None:
    control = Control(engine)
    control.decide(
        produced("a", alias="other"), staged("a"), produced("b", base="old"), staged("b")
    )
    assert control.refused(routed("operator", {"a": 1.0})) == (
        "a is for other on base, not for agent on base"
    )
    assert control.refused(routed("operator", {"b": 1.0})).startswith("b is for agent on old")
    assert control.refused(routed("operator", {"c": 1.0})) == "nobody produced an adapter c"
    assert control.table().routes == ()


def test_a_route_turns_as_a_whole_or_not_at_all(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(produced("b"))
    control.refused(routed("operator", {"a": 0.5, "b": 0.5}))
    assert (control.states(), control.shares()) == (
        {"a": "promoted", "b": "produced"},
        {"a": 1.0},
    )


def test_a_new_base_begins_anew_and_what_served_the_old_one_drains(engine: Engine) -> None:
    control = serving_a(engine)
    new = routed("operator", {None: 1.0}, base="new")
    assert "only an operator moves an alias to another base" in control.refused(
        routed("rollback", {None: 1.0}, base="new")
    )
    control.decide(new)
    row = control.table().route("agent")
    assert row is not None
    assert (row.standing.base, list(row.standing.before)) == ("new", [])
    assert control.states() == {"a": "draining"}
    assert control.refused(routed("rollback", {"a": 1.0})).startswith("agent is answered by new")


def test_what_a_route_names_is_not_unloaded(engine: Engine) -> None:
    control = serving_a(engine)
    assert control.refused(moved("a", "draining")) == "a is promoted: no draining from there"
    control.decide(produced("b"), staged("b"), routed("operator", {"a": 1.0}, shadow="b"))
    control.decide(moved("b", "draining"))
    assert control.refused(moved("b", "unloaded")) == ("the route of agent names b as its shadow")
    control.decide(routed("operator", {"a": 1.0}), moved("b", "unloaded"))
    assert control.states() == {"a": "promoted", "b": "unloaded"}


def test_what_was_unloaded_is_staged_again_before_it_serves(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"), routed("promoted", {"b": 1.0}), moved("a", "unloaded"))
    assert control.refused(routed("rollback", {"a": 1.0})) == (
        "a is unloaded and cannot join as rollback"
    )
    control.decide(staged("a"), routed("rollback", {"a": 1.0}))
    assert control.states() == {"a": "promoted", "b": "rolled_back"}


def test_one_that_was_rejected_before_it_was_loaded_cannot_be_routed(engine: Engine) -> None:
    control = Control(engine)
    control.decide(produced("a"), moved("a", "rejected", "its base is another"))
    assert control.refused(routed("operator", {"a": 1.0})) == (
        "a is rejected and proven on no replica; stage it first"
    )


def test_an_event_that_comes_again_is_no_second_step(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"), routed("promoted", {"b": 1.0}))
    promoted = decision(routed("promoted", {"b": 1.0}), str(control.count - 1), second=99)
    control.decide(routed("rollback", {"a": 1.0}))
    before = hash_of(engine)
    control.log.append([promoted])
    fold(control.log, engine)
    assert control.shares() == {"a": 1.0}
    assert hash_of(engine) == before


def test_an_event_that_was_refused_counts_when_nothing_stands_against_it_any_more(
    engine: Engine,
) -> None:
    """A second attempt has the id of the first, wherever that follows from what is done."""
    control = Control(engine)
    control.decide(produced("a"), staged("a"), routed("operator", {None: 1.0}, shadow="a"))
    control.decide(moved("a", "draining"))
    assert "as its shadow" in control.refused(moved("a", "unloaded"))
    again = decision(moved("a", "unloaded"), str(control.count - 1), second=99)
    control.decide(routed("operator", {None: 1.0}))
    control.log.append([again, again])
    fold(control.log, engine)
    assert control.states() == {"a": "unloaded"}
    with database.read_transaction(engine) as connection:
        steps = [step.state or step.refused for step in serving.adapter_steps(connection, "a")]
    assert steps == [
        "produced", "staged", "draining", "the route of agent names a as its shadow", "unloaded",
    ]  # fmt: skip


def test_another_event_about_the_same_adapter_name_makes_no_second_one(engine: Engine) -> None:
    control = serving_a(engine)
    assert control.refused(produced("a", base="another")) == (
        "a is promoted: no AdapterProduced from there"
    )
    assert control.refused(moved("nobody", "draining")) == "nobody produced an adapter nobody"


def test_each_step_names_its_event_and_what_that_followed_from(engine: Engine) -> None:
    control = Control(engine)
    control.decide(*passed("a"))
    acted = OperatorActed(
        actor="zoe", action="adapters promote", arguments={"adapter": "a"}, reason="friday"
    )
    control.log.append([decision(acted, "acted")])
    control.log.append([decision(routed("promoted", {"a": 1.0}), "route", cause=id_of("acted"))])
    fold(control.log, engine)
    with database.read_transaction(engine) as connection:
        (line,) = serving.route_lines(connection)
        alone = serving.steps_of(connection, id_of("route"))
        life = serving.adapter_steps(connection, "a")
        action = serving.operator_action(connection, alone[0].cause or "")
        row = serving.adapter_row(connection, "a")
        assert serving.operator_actions(connection) == [action]
        assert serving.operator_actions(connection, "other", "adapters promote") == [action]
        assert serving.operator_actions(connection, "other") == []
    assert (line.adapter, line.share, line.cause) == ("a", 1.0, id_of("route"))
    assert action is not None
    assert (action.actor, action.arguments, action.reason) == ("zoe", {"adapter": "a"}, "friday")
    assert [(step.type, step.state) for step in life] == [
        ("AdapterProduced", "produced"), ("AdapterStaged", "staged"),
        ("AdapterEvaluated", "evaluated"), ("GateDecided", "gated"), ("RouteChanged", "promoted"),
    ]  # fmt: skip
    assert row is not None
    assert (row.cause, row.offset) == (id_of("route"), 5)


def test_the_lists_say_what_scripts_were_promised(engine: Engine) -> None:
    control = serving_a(engine)
    control.decide(*passed("b", "a"), produced("c"), staged("c"))
    control.decide(routed("canary", {"b": 0.25, "a": 0.75}, shadow="c"))
    with database.read_transaction(engine) as connection:
        routes = serving.route_lines(connection, "agent")
        adapters = {line.adapter: line for line in serving.adapter_lines(connection)}
        (measured,) = serving.evaluation_lines(connection, "b")
        assert serving.route_lines(connection, "nobody") == []
        assert serving.find_adapter(connection, "b").adapter == "b"
    assert [(line.adapter, line.share, line.shadow) for line in routes] == [
        ("a", 0.75, False), ("b", 0.25, False), ("c", 0.0, True),
    ]  # fmt: skip
    assert len({line.cause for line in routes}) == 1
    assert list(adapters) == ["b", "c", "a"], "the one that moved last comes first"
    gate = adapters["b"].gate
    assert gate is not None
    assert (gate["decision"], adapters["c"].gate) == ("PROMOTE", None)
    assert (adapters["b"].capability, adapters["b"].job) == ("cancel", "job-1")
    assert (measured.incumbent, measured.candidate_pass) == ("a", 0.75)


def test_a_panel_lives_as_an_adapter_does_and_its_parts_stay_as_long_as_it_is_loaded(
    engine: Engine,
) -> None:
    control = Control(engine)
    control.decide(*(step for name in ("a", "b", "r") for step in (produced(name), staged(name))))
    control.decide(composed("p", {"refunds": "a", "rebooking": "b", "rest": None}, router="r"))
    row = control.table().adapter("p")
    assert row is not None
    assert row.composition is not None
    assert (row.state, row.origin, row.path, row.job) == ("produced", "panel", "", None)
    assert row.composition.adapters == ("a", "b", "r")
    assert row.composition.find_adapter("rest") is None
    control.decide(moved("a", "draining"), moved("a", "unloaded"), staged("a"))
    control.decide(staged("p"), evaluated("p"), decided("p", "PROMOTE"))
    control.decide(routed("canary", {"p": 0.05, None: 0.95}), routed("promoted", {"p": 1.0}))
    assert (control.states()["p"], control.shares()) == ("promoted", {"p": 1.0})
    control.decide(moved("a", "draining"), moved("r", "draining"))
    for part in ("a", "r"):
        assert control.refused(moved(part, "unloaded")) == f"the panel p has {part} as a part"
    control.decide(routed("rollback", {None: 1.0}))
    assert control.states()["p"] == "rolled_back"
    assert control.refused(moved("a", "unloaded")) == "the panel p has a as a part"
    control.decide(moved("p", "unloaded"), moved("a", "unloaded"), moved("r", "unloaded"))
    assert control.states() == dict.fromkeys("apr", "unloaded") | {"b": "staged"}
    assert control.refused(routed("operator", {"p": 1.0})) == (
        "p is unloaded and cannot join as operator"
    )
    assert rebuild(control.log, engine).equal


def test_a_panel_is_of_known_adapters_of_its_agent_and_base_that_have_files(
    engine: Engine,
) -> None:
    control = Control(engine)
    control.decide(
        produced("a"), produced("old", base="before"), produced("theirs", alias="other"),
        produced("gone"), staged("gone"), moved("gone", "draining"), moved("gone", "unloaded"),
        moved("gone", "collected"), composed("p", {"refunds": "a"}),
    )  # fmt: skip
    for part, words in (
        ("nobody", "nobody produced an adapter nobody"),
        ("old", "old is for agent on before, not for agent on base"),
        ("theirs", "theirs is for other on base, not for agent on base"),
        ("gone", "gone is collected: its files are gone"),
        ("p", "p is a panel, and no panel is a part of another"),
    ):
        assert control.refused(composed("q", {"refunds": "a", "rest": part})) == words
        assert control.refused(composed("q", {"refunds": "a"}, router=part)) == words
    assert control.refused(composed("p", {"refunds": "a"})).startswith("p is produced")
    assert control.refused(composed("a", {"refunds": "a"})).startswith("a is produced")
    assert sorted(control.states()) == ["a", "old", "p", "theirs"]
    assert rebuild(control.log, engine).equal


def test_a_table_of_routes_is_of_one_position(engine: Engine) -> None:
    control = Control(engine)
    assert control.table().position == 0
    control.decide(*passed("a"), routed("canary", {"a": 0.05, None: 0.95}))
    table = control.table()
    route, adapter = table.route("agent"), table.adapter("a")
    assert table.position == 5
    assert route is not None
    assert adapter is not None
    assert (route.offset, adapter.offset) == (4, 4)
    assert adapter.gate is not None
    assert adapter.replicas == ("http://replica-1/v1",)
    assert table.adapter("b") is None


def test_a_read_is_one_moment_however_many_questions_it_asks(engine: Engine) -> None:
    control = serving_a(engine)
    with database.read_transaction(engine) as connection:
        position = serving.read_decision_offset(connection)
        control.decide(*passed("b", "a"), routed("promoted", {"b": 1.0}))
        late = serving.route_table(connection)
    assert late.position == position
    assert [row.adapter for row in late.adapters] == ["a"]
    assert control.table().position == position + 5


# Sessions that are held out


@pytest.mark.parametrize(
    "change",
    [
        routed("holdout", {"a": 0.5, None: 0.5}, holdout=0.1),
        routed("holdout", {"b": 1.0}, holdout=0.1),
        routed("holdout", {"a": 1.0}, holdout=0.1, base="new"),
        routed("holdout", {"a": 1.0}, holdout=0.1, alias="other"),
        routed("holdout", {None: 1.0}, alias="other"),
    ],
    ids=["other shares", "another adapter", "another base", "another agent", "no route"],
)
def test_a_change_of_the_holdout_changes_nothing_else(engine: Engine, change: RouteChanged) -> None:
    control = serving_a(engine)
    before = control.table().routes
    control.decide(change)
    assert control.table().routes == before
    control.decide(routed("holdout", {"a": 1.0}, holdout=0.1))
    (after,) = control.table().routes
    assert after.standing == replace(before[0].standing, holdout=0.1)
    assert (after.why, after.since, after.cause) == (
        before[0].why, before[0].since, before[0].cause,
    )  # fmt: skip


def test_nothing_is_held_out_where_the_base_answers_everything() -> None:
    with pytest.raises(ValueError, match="where the base answers all of them"):
        routed("operator", {None: 1.0}, holdout=0.1)


# Any sequence of events

NAMES: Final = ("a", "b")
name = st.sampled_from(NAMES)
arm = st.sampled_from((None, *NAMES))
why = st.sampled_from(
    ("operator", "canary", "promoted", "rollback", "expired", "rebased", "holdout")
)
verdict = st.sampled_from(("PROMOTE", "REJECT", "EXTEND"))
retired = st.sampled_from(("rejected", "draining", "unloaded", "collected"))
mostly_agent = st.sampled_from(("agent", "agent", "agent", "other"))
mostly_base = st.sampled_from(("base", "base", "base", "new"))
two = st.permutations((None, *NAMES)).map(lambda order: order[:2])
bursts = st.one_of(
    st.builds(lambda n, a, b: [produced(n, a, b)], name, mostly_agent, mostly_base),
    st.builds(lambda n: [staged(n)], name),
    st.builds(lambda n, i: [evaluated(n, i)], name, arm),
    st.builds(lambda n, v, i: [evaluated(n, i), decided(n, v, i)], name, verdict, arm),
    st.builds(lambda n, v, i: [decided(n, v, i)], name, verdict, arm),
    st.builds(lambda n, i: [*passed(n, i), routed("promoted", {n: 1.0})], name, arm),
    st.builds(
        lambda n: [evaluated(n), decided(n, "PROMOTE"), routed("canary", {n: 0.1, None: 0.9})],
        name,
    ),
    st.builds(lambda n, w: [routed(w, {n: 1.0})], arm, why),
    st.builds(lambda n: [routed("rollback", {n: 1.0})], arm),
    st.builds(
        lambda n, h: [routed("operator", {n: 1.0}), routed("holdout", {n: 1.0}, holdout=h)],
        name, st.sampled_from((0.0, 0.1, 0.2)),
    ),
    st.builds(
        lambda n, w, b, s: [
            routed(w, {n[0]: 0.25, n[1]: 0.75}, base=b, shadow=None if s in n else s)
        ],
        two, why, mostly_base, arm,
    ),
    st.builds(lambda n, s: [moved(n, s)], name, retired),
    st.builds(lambda n: [moved(n, "unloaded"), staged(n)], name),
)  # fmt: skip
prologue = st.sampled_from(
    ([], [*passed("a"), *passed("b")], [produced("a"), staged("a"), *passed("b")])
)
sequences = st.tuples(prologue, st.lists(bursts, min_size=15, max_size=40)).map(
    lambda parts: [*parts[0], *(data for burst in parts[1] for data in burst)]
)
splits = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(decisions=sequences, split=splits, again=st.sets(st.integers(0, 60)))
def test_any_sequence_in_any_batches_gives_the_same_rows_and_only_lives_that_may_be(
    engine: Engine, tmp_path: Path, decisions: Sequence[Decision], split: list[int], again: set[int]
) -> None:
    log = MemoryLog()
    for number, data in enumerate(decisions):
        entry = decision(data, str(number), second=number)
        log.append([entry] * (2 if number in again else 1))
    emptied(engine)
    runner = Runner(log, engine)
    for turn in range(len(decisions) * 2):
        runner.step(LEARNING.name, 0, limit=split[turn % len(split)])
    runner.catch_up()
    straight = fresh(tmp_path, "straight")
    emptied(straight)
    fold(log, straight)
    assert hash_of(engine) == hash_of(straight)
    assert rebuild(log, engine).equal
    straight.dispose()
    with database.read_transaction(engine) as connection:
        assert rollouts.dead_letters(connection) == []
        holds(connection)


def holds(connection: Connection) -> None:
    """What is true of adapters and routes whatever happened."""
    rows = {n: serving.adapter_row(connection, n) for n in NAMES}
    table = serving.route_table(connection)
    for adapter, row in rows.items():
        lived = [s.state for s in serving.adapter_steps(connection, adapter) if s.state]
        assert (row is None) == (not lived)
        if row is None:
            continue
        assert lived[0] is State.PRODUCED
        assert lived[-1] is row.state
        assert all(two in NEXT[one] for one, two in pairwise(lived) if one is not two)
    named = [part.adapter for route in table.routes for part in route.standing.shares]
    serves = [n for n, row in rows.items() if row is not None and row.state in SERVING]
    assert sorted(n for n in named if n is not None) == sorted(serves)
    for route in table.routes:
        for n in (*route.standing.adapters, route.standing.shadow):
            row = rows[n] if n is not None else None
            assert n is None or row is not None
            if row is not None:
                assert (row.alias, row.base) == (route.alias, route.standing.base)
                assert row.state in LOADED
                assert row.replicas
        standing = route.standing
        assert len(set(standing.previous)) == len(standing.previous)
        assert standing.incumbent not in standing.previous
        back = [rows[n] for n in standing.before if n is not None]
        assert all(row is not None and row.state is not State.ROLLED_BACK for row in back)


def emptied(engine: Engine) -> None:
    with database.write_transaction(engine) as connection:
        for model in (*PROJECTED, *BOOKKEEPING):
            connection.execute(delete(model.table()))


def test_what_a_panel_answered_counts_for_all_of_its_parts(engine: Engine) -> None:
    control = Control(engine)
    control.decide(
        produced("a"), produced("b"), produced("r"),
        composed("p", {"refunds": "a"}, router="r"), staged("p"),
    )  # fmt: skip

    def parts() -> list[str]:
        with database.read_transaction(engine) as connection:
            return [n for n in ("a", "b", "r") if old_members.has_panel_history(connection, n)]

    assert parts() == []
    control.decide(routed("operator", {"p": 1.0}), routed("rollback", {None: 1.0}))
    assert parts() == ["a", "r"]
