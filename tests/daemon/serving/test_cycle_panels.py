"""What a cycle makes its panel and its router of, at a replica that proves the labels."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from daemon.adapters.directory import WEIGHTS
from daemon.config.settings import Agent, Improve
from daemon.core.decision_log import Decisions
from daemon.cycle.branches import VersionRefusal
from daemon.cycle.job_spec import NotTrainable
from daemon.cycle.proposal import RetryLater
from daemon.cycle.state_machine import Step
from daemon.cycle.worker import CycleWorker
from daemon.engine.chat import Chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.jobs.runner_factory import trials_of
from daemon.methods.skills.panel_makers import compose_panel, teach_router
from daemon.methods.skills.panel_parts import PanelParts, RouterLesson
from daemon.methods.skills.panels import Composition, CompositionRefusal, compose
from daemon.serving.residency import NoRoom
from envs.shop.environment import Shop
from events.jobs import JobSpec, LoraSettings, TaskPool
from events.learning import JobRequested
from events.serving import AdapterProduced, PanelComposed, PanelMember
from ops.random_adapters import Adapters
from tests.daemon.engine.heads import save_head
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA, Home

AGENT: Final = Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT)
TASKS: Final = {
    "refunds": ("shop/return/1", "shop/return/2"),
    None: ("shop/cancel/1", "shop/cancel/2"),
}


def lesson(skills: dict[str, str]) -> RouterLesson:
    return RouterLesson("job-r", AGENT, "reference", skills, TASKS)


def teach(home: Home, skills: dict[str, str]) -> JobSpec:
    return teach_router(home.app, lesson(skills), [engine.url for engine in home.engines])


def test_the_job_of_a_router_has_options_whose_labels_an_engine_proved(
    make_home: MakeHome,
) -> None:
    home = make_home(1)
    spec = teach(home, {"refunds": "pays money back"})
    assert spec == teach(home, {"refunds": "pays money back"})
    assert spec.router is not None
    chat = Chat(CHECKPOINT)
    tokens = [(option.token,) for option in spec.router.options]
    assert tokens == [chat.encode("A"), chat.encode("B")]
    assert [option.skill for option in spec.router.options] == ["refunds", None]
    names = [option.description for option in spec.router.options]
    assert names == ["refunds", "none of these"], "its tasks say what a skill is"
    assert {pool.skill: pool.tasks for pool in spec.pools} == TASKS
    with pytest.raises(NotTrainable, match="a panel of 26 skills has no labels"):
        teach(home, {f"skill-{number}": "one of many" for number in range(26)})
    home.engines[0].stop()
    with pytest.raises(RetryLater, match="the router of agent waits"):
        teach(home, {"refunds": "pays money back"})


def parts(cycle: str, member: str, router: str | None = None) -> PanelParts:
    members = (PanelMember(skill="refunds", adapter=member),)
    return PanelParts(cycle, "agent", "reference", "an event", members, router, None)


def composed(home: Home) -> list[PanelComposed]:
    return [event.data for event in home.decided() if isinstance(event.data, PanelComposed)]


def test_each_cycle_composes_a_panel_of_its_own_once(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """Also where the next one has the same members: a cycle waits for the panel that names it."""
    home = make_home(1)
    member = home.push(adapters["v1"])
    for cycle in ("cycle-1", "cycle-1", "cycle-2"):
        compose_panel(home.app, parts(cycle, member), fleet=home.fleet)
    first, second = composed(home)
    assert (first.cycle, second.cycle) == ("cycle-1", "cycle-2")
    assert first.adapter != second.adapter
    assert first.panel == second.panel
    described = first.panel.router.options[0].description
    assert described == "refunds", "no comparison names it now"
    assert [len(row) for row in first.panel.router.calibration] == [2, 2]


def test_a_router_reads_the_prompt_that_it_was_trained_on(
    make_home: MakeHome, adapters: Adapters
) -> None:
    home = make_home(1)
    member = home.push(adapters["v1"])
    spec = teach(home, {"refunds": "pays money back"})
    router = record_adapter(home, spec, adapters["v2"])
    compose_panel(home.app, parts("cycle-1", member, router), fleet=home.fleet)
    (panel,) = composed(home)
    assert spec.router is not None
    assert panel.panel.router == spec.router.model_copy(update={"adapter": router})
    other = PanelMember(skill="rebooking", adapter=member)
    strange = PanelParts("cycle-2", "agent", "reference", "an event", (other,), router, None)
    with pytest.raises(
        VersionRefusal, match="trained to choose among refunds, and the members are"
    ):
        compose_panel(home.app, strange, fleet=home.fleet)


def test_a_router_that_the_base_plays_reads_a_conversation_of_each_skill(
    make_home: MakeHome, adapters: Adapters, caplog: pytest.LogCaptureFixture
) -> None:
    """Of tasks that its members were trained on, where that fits the engine."""
    home = make_home(1)
    own = TASKS["refunds"]
    spec = JobSpec(
        job="job-1", base="reference", checkpoint=str(CHECKPOINT), environment="shop",
        pools=(TaskPool(name="own", tasks=("shop/x/1", *own)),),
    )  # fmt: skip
    member = record_adapter(home, spec, adapters["v1"])
    compose_panel(home.app, parts("cycle-1", member), fleet=home.fleet)
    (panel,) = composed(home)
    shown, none = panel.panel.router.options
    opening = Shop().task(own[0]).script
    assert opening is not None
    assert shown.example.startswith(f"user: {opening.opening}\nassistant: Confirm: ")
    assert none.example == ""
    assert "task shop/x/1 is no example" in caplog.text
    skills = {f"skill-{number}": member for number in range(12)}
    described = Composition(skills, descriptions=dict.fromkeys(skills, "helps"))
    full = compose(home.app, home.fleet, replace(described, shows_examples=True), ADA)
    assert full.composition is not None
    assert {option.example for option in full.composition.router.options} == {""}
    assert "reads no examples: " in caplog.text


def test_a_head_is_composed_without_calibration_and_staged_with_its_panel(
    make_home: MakeHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(1, improve=Improve(skills_router="head"))
    member = home.push(adapters["v1"])
    spec = teach(home, {"refunds": "pays money back"})
    assert spec.router is not None
    assert spec.router.form == "head"
    assert spec.lora == LoraSettings(rank=2, alpha=2, targets=("lm_head",))
    tokens = [option.token for option in spec.router.options]
    head = record_adapter(home, spec, save_head(CHECKPOINT, tmp_path / "head", tokens))
    compose_panel(home.app, parts("cycle-1", member, head), fleet=home.fleet)
    (panel,) = composed(home)
    assert panel.panel.router == spec.router.model_copy(update={"adapter": head})
    home.publisher.stage(panel.adapter, ADA)
    assert home.loaded() == [sorted([member, head])]
    row = home.row(head)
    assert row.from_base is not None
    assert row.from_base > 0.1, "the engine is told from one that does not hold it"


def test_a_head_from_another_home_is_asked_as_its_files_say(
    make_home: MakeHome, adapters: Adapters, tmp_path: Path
) -> None:
    home = make_home(1, improve=Improve(skills_router="head"))
    spec = teach(home, {"refunds": "pays money back"})
    assert spec.router is not None
    tokens = [option.token for option in spec.router.options]
    stored = spec.model_dump(mode="json")
    folder = save_head(CHECKPOINT, tmp_path / "head", tokens, spec=stored)
    member, head = home.push(adapters["v1"]), home.push(folder)
    row = compose(home.app, home.fleet, Composition({"refunds": member}, router=head), ADA)
    panel = row.composition
    assert panel is not None
    assert panel.router == spec.router.model_copy(update={"adapter": head})
    with pytest.raises(CompositionRefusal, match="trained to choose among refunds, and the mem"):
        compose(home.app, home.fleet, Composition({"upgrades": member}, router=head), ADA)


def record_adapter(home: Home, spec: JobSpec, folder: Path) -> str:
    """Record the adapter that a job left; return its name."""
    job = JobRequested(job=spec.job, alias="agent", base="reference", spec=spec, minutes=1)
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    data = AdapterProduced(
        adapter=f"of-{spec.job}", alias="agent", base="reference", sha256=digest, path=str(folder),
        job=spec.job, origin="job",
    )  # fmt: skip
    Decisions(home.app).record({"requested": job, "produced": data}, "ada")
    home.app.settle()
    return data.adapter


def test_a_panel_waits_for_slots_only_while_something_is_about_to_leave_one(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """Its members hold the others until it is composed, so it would wait for ever."""
    home = make_home(1, upstream={"max_loras": 3})
    first, second, third = (home.push(adapters[name]) for name in ("v1", "v2", "v3"))
    members = {"refunds": first, "rebooking": home.push(adapters["v1"], name="one-more")}
    composition = Composition(members, router=third, descriptions=dict.fromkeys(members, "helps"))
    panel = compose(home.app, home.fleet, composition, ADA).adapter
    worker = CycleWorker(home.app, home.fleet, trials_of(home.app.settings), home.clock)

    def stage() -> list[str]:
        return list(worker._take_step(home.row(panel), Step.STAGE))

    for name in (first, second):
        home.publisher.promote(name, ADA, override=True)
    home.gateway("g", 1 << 40, **{first: 1})
    with pytest.raises(NoRoom, match="is 3"):
        stage()
    assert (home.state(panel), home.state(first)) == ("produced", "draining")
    home.gateway()
    assert [f"{panel} is rejected" in told for told in stage()] == [True]
    assert home.state(panel) == "rejected"
