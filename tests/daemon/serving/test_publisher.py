"""What people do to adapters and routes: each step on real engines, or nothing of it."""

import shutil
from pathlib import Path

import pytest

from consumers.folds.routing import RouteRefusal
from consumers.reads import serving
from consumers.reads.serving import UnknownAdapter
from daemon.adapters.adoption import BadName, NoFingerprint, adopt, read_expectation
from daemon.adapters.directory import CONFIG, WEIGHTS, BadAdapter
from daemon.core.decision_log import Act, Decisions
from daemon.core.serving_lock import HomeLockBusy, hold_serving_lock
from daemon.serving.publisher import NothingBefore, PromotionRefusal, RetirementRefusal
from daemon.serving.push import PushRefusal, push
from daemon.serving.residency import NoRoom
from daemon.serving.staging import ReplicaAway, StageRefusal
from events.gate import SIBLING, Check
from events.serving import AdapterStaged, RouteChanged
from ops.random_adapters import Adapters
from tests.consumers.deciding import decided, evaluated
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home

# Pushing


def test_a_push_copies_the_files_under_a_name_made_of_them(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(0)
    row = home.row(home.push(adapters["v1"], base="reference", capability="cancel order"))
    assert row.adapter.startswith("cancel-order-1-")
    folder = Path(row.path)
    assert folder == home.app.settings.adapters / row.adapter
    assert (folder / WEIGHTS).read_bytes() == (adapters["v1"] / WEIGHTS).read_bytes()
    assert read_expectation(folder) == adapters.read_fingerprint("v1")
    assert (row.state, row.origin, row.capability) == ("produced", "push", "cancel order")
    (acted,) = home.acts().values()
    assert (acted.actor, acted.action, acted.reason) == ("ada", "adapters push", "because")
    (step,) = home.steps(row.adapter)
    assert step.cause in home.acts()


def test_the_same_files_again_are_the_same_adapter_and_others_another(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(0)
    name = home.push(adapters["v1"], base="reference")
    again = push(home.app, home.fleet, adapters["v1"], ADA, alias="agent", base="reference")
    assert (again.adapter.adapter, again.new) == (name, False)
    assert home.push(adapters["v2"], base="reference") != name
    assert len(home.acts()) == 2


@pytest.mark.long
def test_a_scale_that_differs_makes_another_adapter_of_the_same_weights(
    tmp_path: Path, make_home: MakeHome, adapters: Adapters
) -> None:
    """What the second answers is computed, for its provenance would not hold."""
    home = make_home(0)
    louder = Path(shutil.copytree(adapters["v1-bare"], tmp_path / "louder"))
    config = louder / CONFIG
    config.write_text(config.read_text().replace('"lora_alpha": 16.0', '"lora_alpha": 32.0'))
    assert config.read_text() != (adapters["v1-bare"] / CONFIG).read_text()
    quiet = home.push(adapters["v1"], base="reference")
    loud = home.push(louder, base="reference", checkpoint=adapters.base)
    assert quiet.rpartition("-")[2] != loud.rpartition("-")[2]
    assert home.row(quiet).sha256 == home.row(loud).sha256


def test_a_name_of_ones_own_is_kept_and_never_given_twice(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(0)
    assert home.push(adapters["v1"], base="reference", name="tuesday") == "tuesday"
    with pytest.raises(PushRefusal, match=r"tuesday is an adapter of agent .* another --name"):
        home.push(adapters["v2"], base="reference", name="tuesday")
    with pytest.raises(BadName, match="no name of an adapter"):
        home.push(adapters["v2"], base="reference", name="../tuesday")


@pytest.mark.long
def test_what_a_directory_does_not_say_of_itself_is_computed(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(0)
    name = home.push(adapters["v1-bare"], base="reference", checkpoint=adapters.base)
    assert name.startswith("agent-")
    assert read_expectation(Path(home.row(name).path)) == adapters.read_fingerprint("v1")


def test_without_the_base_or_without_torch_nothing_can_be_computed(
    make_home: MakeHome, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(0)
    with pytest.raises(NoFingerprint, match="folder of its base is not known here"):
        home.push(adapters["v1-bare"], base="reference")
    monkeypatch.setattr("daemon.adapters.adoption.find_spec", lambda name: None)
    with pytest.raises(NoFingerprint, match=r"needs torch: install kintsugi\[train\]"):
        home.push(adapters["v1-bare"], base="reference", checkpoint=adapters.base)
    assert home.decided() == []
    assert home.push(adapters["v1"], base="reference"), "what says it itself needs neither"


def test_a_copy_that_was_changed_is_not_taken_for_the_adapter(
    adapters: Adapters, tmp_path: Path
) -> None:
    folder = adopt(adapters["v2"], tmp_path, adapters.base).folder
    assert adopt(adapters["v2"], tmp_path, adapters.base).folder == folder
    shutil.copy(adapters["v1"] / WEIGHTS, folder / WEIGHTS)
    with pytest.raises(BadAdapter, match="holds something else than it should"):
        adopt(adapters["v2"], tmp_path, adapters.base)


# Staging


def test_an_adapter_of_another_base_is_found_out_when_it_answers(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    name = home.push(adapters["strange"])
    with pytest.raises(StageRefusal, match=r"staged nowhere: .* base"):
        home.publisher.stage(name, ADA)
    assert (home.loaded(), home.state(name)) == ([[]], "produced")


def test_staged_means_that_every_replica_was_seen_to_answer_with_it(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    name = home.push(adapters["v1"])
    row = home.publisher.stage(name, ADA)
    assert row.state == "staged"
    assert set(row.replicas) == {engine.url for engine in home.engines}
    assert row.distance is not None
    assert row.from_base is not None
    assert row.distance < 1e-4 < 0.1 < row.from_base
    assert home.loaded() == [[name], [name]]
    before = home.decided()
    home.publisher.stage(name, ADA)
    assert home.decided() == before, "again is nothing more"


def test_with_one_of_two_replicas_down_nothing_is_loaded_and_nothing_said(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    name = home.push(adapters["v1"])
    home.engines[1].stop()
    with pytest.raises(ReplicaAway, match=r"would not be on every replica: .* cannot be reached"):
        home.publisher.stage(name, ADA)
    assert (home.loaded(), home.state(name)) == ([[], []], "produced")
    home.engines[1].start()
    assert home.publisher.stage(name, ADA).state == "staged"


def test_what_one_replica_refuses_is_unloaded_from_the_other(
    make_home: MakeHome, adapters: Adapters, tmp_path: Path
) -> None:
    """The second replica sees another folder under the path that it is told."""
    nowhere = {"path_map": {tmp_path: "/nowhere"}}
    home = make_home(2, upstream=[{}, nowhere])
    name = home.push(adapters["v1"])
    with pytest.raises(StageRefusal, match=r"staged nowhere: .* does not load .*path_map"):
        home.publisher.stage(name, ADA)
    assert (home.loaded(), home.state(name)) == ([[], []], "produced")
    assert not [e for e in home.decided() if isinstance(e.data, AdapterStaged)]


def test_a_replica_that_answers_with_other_weights_is_found_out(
    make_home: MakeHome, adapters: Adapters, tmp_path: Path
) -> None:
    """The second replica's copy of the folder holds a version that differs by a hair."""
    elsewhere = tmp_path / "elsewhere"
    home = make_home(2, upstream=[{}, {"path_map": {tmp_path / "home": str(elsewhere)}}])
    name = home.push(adapters["v1"], name="told")
    folder = Path(home.row(name).path)
    copy = elsewhere / folder.relative_to(tmp_path / "home")
    shutil.copytree(adapters["v2"], copy)
    with pytest.raises(StageRefusal, match="nats from what the adapter computes"):
        home.publisher.stage(name, ADA)
    assert (home.loaded(), home.state(name)) == ([[], []], "produced")


@pytest.mark.parametrize("damage", ["truncated", "deleted", "exchanged"])
def test_files_that_changed_since_are_not_loaded(
    damage: str, make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])
    weights = Path(home.row(name).path) / WEIGHTS
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "exchanged":
        shutil.copy(adapters["v2"] / WEIGHTS, weights)
    else:
        weights.unlink()
    with pytest.raises(BadAdapter, match=WEIGHTS):
        home.publisher.stage(name, ADA)
    assert (home.loaded(), home.state(name)) == ([[]], "produced")


def test_an_adapter_more_than_fits_is_refused_with_the_numbers(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_loras": 2, "max_cpu_loras": 2})
    home.serve(adapters["v1"])
    second = home.push(adapters["v2"])
    home.publisher.stage(second, ADA)
    third = home.push(adapters["v3"])
    with pytest.raises(NoRoom, match=r"no slot for .*: 3 are needed .* max_loras is 2"):
        home.publisher.stage(third, ADA)
    with pytest.raises(NoRoom, match="max_loras is 2"):
        home.publisher.promote(second, ADA, override=True)
    assert len(home.loaded()[0]) == 2


def test_what_is_only_kept_makes_room(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1, upstream={"max_loras": 3, "max_cpu_loras": 3})
    first = home.serve(adapters["v1"])
    second = home.serve(adapters["v2"])
    assert home.state(first) == "draining"
    pinned = home.push(adapters["fresh"])
    with pytest.raises(StageRefusal, match="cannot be told from its base"):
        home.publisher.stage(pinned, ADA)
    third = home.push(adapters["v3"])
    home.publisher.pin(third, ADA)
    assert home.loaded() == [sorted([first, second, third])]
    fourth = home.push(adapters["v1"], name="v1-again")
    home.publisher.stage(fourth, ADA)
    assert home.loaded() == [sorted([second, third, fourth])]
    assert home.state(first) == "unloaded"


# Routes


def test_a_promotion_needs_a_passed_gate_or_a_persons_reason(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])
    with pytest.raises(PromotionRefusal, match=r"produced and has passed no gate; evaluate it"):
        home.publisher.promote(name, ADA)
    with pytest.raises(PromotionRefusal, match="only with a reason; give --reason"):
        home.publisher.promote(name, Act("ada"), override=True)
    assert home.shares() == {}
    route = home.publisher.promote(name, ADA, override=True)
    assert (home.shares(), route.why) == ({name: 1.0}, "operator")
    assert home.state(name) == "promoted"
    (changed,) = [event for event in home.decided() if isinstance(event.data, RouteChanged)]
    acted = home.acts()[changed.envelope.cause or ""]
    assert (acted.action, acted.arguments["override"]) == ("adapters promote", "true")
    before = home.decided()
    home.publisher.promote(name, ADA, override=True)
    assert home.decided() == before, "again is nothing more"


def test_the_gate_of_a_member_lets_nobody_give_it_every_session(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    name = home.push(adapters["v1"])
    home.publisher.stage(name, ADA)
    said = decided(name, "PROMOTE")
    worse = Check(name=f"{SIBLING}return", verdict="FAIL", value=-0.3, limit=-0.05, tasks=64)
    checked = said.report.model_copy(update={"checks": (worse,)})
    for step in (evaluated(name), said.model_copy(update={"report": checked})):
        Decisions(home.app).take(step, step.TYPE, "ada")
    assert home.state(name) == "gated"
    with pytest.raises(
        PromotionRefusal, match="in which return decided nothing; promote a version"
    ):
        home.publisher.promote(name, ADA)
    home.publisher.promote(name, ADA, override=True)
    assert home.shares() == {name: 1.0}


def test_a_share_below_one_leaves_the_rest_to_the_incumbent(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    first = home.serve(adapters["v1"])
    second = home.push(adapters["v2"])
    home.publisher.promote(second, ADA, share=0.25, override=True)
    assert home.shares() == {second: 0.25, first: 0.75}
    assert (home.state(first), home.state(second)) == ("promoted", "canary")


def test_with_a_replica_down_nobody_is_promoted_and_the_route_stays(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    first = home.serve(adapters["v1"])
    second = home.push(adapters["v2"])
    home.publisher.stage(second, ADA)
    home.engines[0].stop()
    with pytest.raises(ReplicaAway):
        home.publisher.promote(second, ADA, override=True)
    assert home.shares() == {first: 1.0}


def test_a_replica_that_forgot_an_adapter_gets_it_back_before_the_route_turns(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    name = home.push(adapters["v1"])
    home.publisher.stage(name, ADA)
    home.engines[0].restart()
    assert home.loaded() == [[], [name]]
    home.publisher.promote(name, ADA, override=True)
    assert home.loaded() == [[name], [name]]


def test_a_rollback_is_one_command_and_finds_its_target_loaded(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    first = home.serve(adapters["v1"])
    second = home.serve(adapters["v2"])
    home.tick()
    assert home.loaded() == [sorted([first, second])], "kept for the way back"
    with hold_serving_lock(home.app.home):
        route = home.publisher.rollback("agent", ADA)
    assert (home.shares(), route.why) == ({first: 1.0}, "rollback")
    assert (home.state(first), home.state(second)) == ("promoted", "rolled_back")
    home.publisher.rollback("agent", ADA)
    assert home.shares() == {None: 1.0}
    with pytest.raises(NothingBefore, match="nobody answered agent before"):
        home.publisher.rollback("agent", ADA)


def test_a_rollback_to_somebody_who_was_unloaded_loads_him_first(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    names = [home.serve(adapters[name]) for name in ("v1", "v2", "v3")]
    home.tick()
    assert home.state(names[0]) == "unloaded"
    home.publisher.rollback("agent", ADA, to=names[0])
    assert home.shares() == {names[0]: 1.0}
    assert names[0] in home.loaded()[0]
    with pytest.raises(RouteRefusal, match="a rollback of agent goes to one of those before"):
        home.publisher.rollback("agent", ADA, to=names[1])


def test_a_rollback_works_with_one_of_two_replicas_down(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(2)
    first = home.serve(adapters["v1"])
    home.serve(adapters["v2"])
    home.engines[1].stop()
    home.publisher.rollback("agent", ADA)
    assert home.shares() == {first: 1.0}


def test_a_route_is_set_by_hand_with_a_shadow(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1)
    names = [home.push(adapters[name]) for name in ("v1", "v2")]
    home.publisher.set_route("agent", {names[0]: 0.5, None: 0.5}, ADA, shadow=names[1])
    assert home.shares() == {names[0]: 0.5, None: 0.5}
    assert home.loaded() == [sorted(names)], "what was not loaded was, and first"
    route = home.table().route("agent")
    assert route is not None
    assert route.standing.shadow == names[1]
    home.tick()
    assert home.loaded() == [sorted(names)]
    with pytest.raises(RouteRefusal, match="is for agent on reference, not for other"):
        home.publisher.set_route("other", {names[0]: 1.0}, ADA)


# Staying and going


def test_what_is_pinned_stays_and_what_is_retired_goes(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    names = [home.push(adapters[name]) for name in ("v1", "v2")]
    home.publisher.pin(names[0], ADA)
    home.publisher.stage(names[1], ADA)
    for name in names:
        home.publisher.retire(name, ADA)
    home.tick()
    assert home.loaded() == [[names[0]]]
    assert (home.state(names[0]), home.state(names[1])) == ("draining", "unloaded")
    home.publisher.pin(names[0], ADA, off=True)
    home.tick()
    assert home.loaded() == [[]]
    assert home.state(names[0]) == "unloaded"


def test_what_is_on_its_way_out_is_neither_staged_nor_pinned_before_it_is_unloaded(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    loaded, never = (home.push(adapters[name]) for name in ("v1", "v2"))
    home.publisher.stage(loaded, ADA)
    for name in (loaded, never):
        home.publisher.retire(name, ADA)
    acts = home.acts()
    with pytest.raises(StageRefusal, match=r"is draining, .* once it is unloaded"):
        home.publisher.stage(loaded, ADA)
    with pytest.raises(StageRefusal, match=r"is rejected, .* once it is unloaded"):
        home.publisher.pin(never, ADA)
    with pytest.raises(StageRefusal, match="is rejected"):
        home.publisher.promote(never, ADA, override=True)
    assert home.acts() == acts, "what is refused at once leaves no event"
    home.tick()
    home.publisher.pin(never, ADA)
    assert home.loaded() == [[never]]


def test_who_serves_is_not_retired(make_home: MakeHome, adapters: Adapters) -> None:
    home = make_home(1)
    name = home.serve(adapters["v1"])
    with pytest.raises(RetirementRefusal, match="promoted; give its sessions to somebody else"):
        home.publisher.retire(name, ADA)


def test_a_name_may_be_shortened_as_long_as_it_names_one(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(0)
    names = [home.push(adapters[name], base="reference", name=name) for name in ("v1", "v2")]
    assert home.row("v1").adapter == names[0]
    with pytest.raises(UnknownAdapter, match="several adapters begin with 'v'"):
        home.row("v")
    with pytest.raises(UnknownAdapter, match="there is no adapter 'x'"):
        home.row("x")


def test_one_process_of_a_home_acts_at_a_time(
    make_home: MakeHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(0)
    with (
        hold_serving_lock(home.app.home),
        pytest.raises(HomeLockBusy, match=r"serving.lock"),
        hold_serving_lock(home.app.home, patience=0),
    ):
        pass
    with hold_serving_lock(home.app.home, patience=0):
        pass


def test_a_rank_above_what_the_engines_take_is_refused(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, upstream={"max_lora_rank": 4})
    with pytest.raises(BadAdapter, match="rank 8, and the engines take 4"):
        home.push(adapters["v1"])


# Sessions that are held out


def test_promotions_rollbacks_and_routes_by_hand_hold_out_the_share_of_the_settings(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, canary={"holdout": 0.02})
    first = home.serve(adapters["v1"], base="reference")
    assert held_out(home) == 0.02
    second = home.push(adapters["v2"], base="reference")
    home.publisher.promote(second, ADA, share=0.25, override=True)
    assert held_out(home) == 0.02
    with home.app.reading() as connection:
        lines = serving.route_lines(connection, "agent")
    assert [(line.adapter, line.holdout) for line in lines] == [
        (first, False), (second, False), (None, True),
    ]  # fmt: skip
    assert [line.share for line in lines] == pytest.approx([0.735, 0.245, 0.02])
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), held_out(home)) == ({first: 1.0}, 0.02)
    home.publisher.rollback("agent", ADA)
    assert (home.shares(), held_out(home)) == ({None: 1.0}, 0)
    home.publisher.set_route("agent", {first: 0.5, None: 0.5}, ADA)
    assert held_out(home) == 0.02


def held_out(home: Home) -> float:
    route = home.table().route("agent")
    assert route is not None
    return route.standing.holdout


def test_a_changed_setting_changes_the_route_and_not_who_decided_it(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    name = home.serve(adapters["v1"], base="reference")
    before = home.table().route("agent")
    assert before is not None
    for share in (0.02, 0.0, 0.02):
        settings = home.app.settings
        canary = settings.canary.model_copy(update={"holdout": share})
        home.app.settings = settings.model_copy(update={"canary": canary})
        assert home.publisher.hold_out() == ["agent"]
        assert home.publisher.hold_out() == [], "and that is it"
        after = home.table().route("agent")
        assert after is not None
        assert (home.shares(), after.standing.holdout) == ({name: 1.0}, share)
        assert (after.why, after.since, after.cause) == (before.why, before.since, before.cause)
        assert after.offset > before.offset
    changes = [event.data for event in home.decided() if isinstance(event.data, RouteChanged)]
    assert [(one.why, one.holdout) for one in changes[1:]] == [
        ("holdout", 0.02), ("holdout", 0.0), ("holdout", 0.02),
    ]  # fmt: skip


def test_where_the_base_answers_alone_nothing_is_held_out(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1, canary={"holdout": 0.02})
    home.serve(adapters["v1"], base="reference")
    home.publisher.rollback("agent", ADA)
    assert home.publisher.hold_out() == []
    assert held_out(home) == 0
