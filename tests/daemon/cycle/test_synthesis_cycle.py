"""Plans in cycles: from tries that the checks rejected to a directive, plans, tasks by them and a
job; tables, log, environment, checks and folds are real."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from sqlalchemy import select

from consumers.methods.synthesis.plans import list_plan_sets, read_plan_changes, read_plans
from consumers.reads import learning
from consumers.reads.explanation import Node, explain
from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import CYCLE_START
from consumers.rebuild import rebuild
from consumers.tables import Cycle
from daemon.config.settings import Agent, Improve, Log, Proposer, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.plan import plan_cycle
from daemon.cycle.planner import CyclePlanner
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.synthesis.engine import Parts, make_parts
from daemon.methods.synthesis.planner import plan_by_rule
from daemon.methods.synthesis.practice import read_synthesis_practices
from daemon.methods.synthesis.protocols import PlanDrafts, PlanRequest
from daemon.methods.synthesis.quotas import MakeParts, choose_parts
from daemon.proposer.candidate import CannotSample
from envs.environment import Environment
from envs.registry import open_environment
from events.learning import Decision, JobEnded, TaskProposed, TaskRejected
from events.log import read_all
from events.streams import LEARNING
from events.synthesis.plans import MOST_PLANS, MOST_ROUNDS, PlansRevised, PlansWritten
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import record, tasks
from tests.daemon.cycle.test_planner import QUIET
from tests.daemon.methods.synthesis.parts import FailingWriter

PATTERN = "missing_write_action|cancel_order"


@contextmanager
def home(
    folder: Path, synthesis: Any = "auto", base: str = "base", **improve: Any
) -> Iterator[App]:
    """A home whose only failed task is said in other words again and again, which the checks
    reject in half of the tries: the environment has no more words."""
    settings = Settings(
        home=folder, log=Log(durability="process"), scheduler=QUIET,
        agents=(Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
        proposer=Proposer(tasks=80, explore=0.0),
        improve=Improve(
            **{"synthesis": synthesis, "synthesis_plans": 6, "synthesis_rounds": 1, **improve}
        ),
    )  # fmt: skip
    with App(settings) as app:
        yield app


def run_cycle(
    app: App, first: int = 0, base: str = "base", make: MakeParts = choose_parts
) -> CycleRow:
    """A cycle over a new failed rollout; its job fails."""
    record(app, "agent", base, tasks(("cancel",), 1, 2**24 + first))
    app.settle()
    Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
    lead(app, make)
    with app.reading() as connection:
        cycle = learning.open_cycle(connection, "agent")
    assert cycle is not None
    assert cycle.job is not None
    return cycle


def lead(app: App, make: MakeParts = choose_parts) -> None:
    """One look of a leader, which resigns."""
    leadership = Leadership(app)
    assert Leader(app, CyclePlanner(app, make_parts=make), leadership).tick().troubles == []
    leadership.resign()


def end_cycle(app: App, cycle: CycleRow) -> None:
    assert cycle.job is not None
    Decisions(app).take(JobEnded(job=cycle.job, outcome="failed"), "ended", cycle.job)
    lead(app)


def read_events(
    app: App, cycle: CycleRow, make: MakeParts = choose_parts
) -> list[tuple[str, Decision]]:
    """The decisions that a cycle wrote, once more by the planner."""
    return list(CyclePlanner(app, make_parts=make).propose_tasks(cycle).said.items())


def make_failing(environment: Environment, settings: Settings, directive: str) -> Parts:
    """Have a writer leak the name of a tool, but for plans with a rule against it."""
    assert "by synthesize" in directive
    return replace(make_parts(environment), writer=FailingWriter(environment))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a cycle by templates, of whose tries half were rejected."""
    folder = tmp_path_factory.mktemp("recorded") / "home"
    with home(folder) as app:
        cycle = run_cycle(app)
        assert cycle.directive is not None
        assert cycle.directive.quotas[0].modes == ()
        assert cycle.rejected >= cycle.accepted
        end_cycle(app, cycle)
    return folder


@pytest.fixture
def app(recorded: Path, tmp_path: Path) -> Iterator[App]:
    """A copy of it."""
    copytree(recorded, tmp_path / "home")
    with home(tmp_path / "home") as app:
        yield app


def test_where_half_was_rejected_the_next_cycle_has_plans_write(app: App) -> None:
    cycle = run_cycle(app, 1)
    assert cycle.directive is not None
    (quota,) = cycle.directive.quotas
    (choice,) = quota.modes
    assert (choice.mode, choice.tasks) == ("synthesize", quota.tasks)
    assert choice.reason.startswith("the checks rejected 41 of 81 (novelty 41) of the tries by")
    with app.reading() as connection:
        (line,) = list_plan_sets(connection, "agent")
        written = [
            row for row in learning.tasks_of(connection, "agent") if row.cycle == cycle.cycle
        ]
        rejected = learning.rejections_of(connection, cycle.cycle)
        job = learning.job(connection, cycle.job or "")
        states = read_plans(connection, line.plans)
        changes = read_plan_changes(connection, line.plans)
    assert (line.patterns, line.writer, line.plans_count) == ((PATTERN,), None, 6)
    by_plans = [row for row in written if row.plan is not None]
    assert len(by_plans) >= quota.tasks // 2
    assert {row.plans for row in by_plans} == {line.plans}
    assert {row.mode for row in by_plans} == {"synthesize"}
    assert all(row.task.id.startswith("shop/=") for row in by_plans)
    # A plan is of the kind of the failed task.
    assert {state.plan.kind for state in states} == {"cancel"}
    tries = len(by_plans) + sum(row.plan is not None for row in rejected)
    counted = sum(state.counts.tries for state in states) + sum(
        change.tries if not change.kept else change.tries_before for change in changes
    )
    assert counted == tries
    assert job is not None
    drawn = {task for pool in job.spec.pools for task in pool.tasks}
    assert {row.task.id for row in by_plans} <= drawn


def test_events_are_in_the_order_in_which_they_happened(app: App) -> None:
    cycle = run_cycle(app, 1)
    events = [data for _, data in read_events(app, cycle)]
    assert isinstance(events[0], PlansWritten)
    seen = Counter[str]()
    for data in events:
        seen[data.TYPE] += 1
        if isinstance(data, TaskProposed) and data.plan is not None:
            # Its rollout was examined before it was proposed.
            assert seen["TrajectoryVerified"] >= seen["TaskProposed"]
        if isinstance(data, PlansRevised):
            assert seen["TaskProposed"] + seen["TaskRejected"] > 0
    templates = [
        place
        for place, data in enumerate(events)
        if isinstance(data, TaskProposed | TaskRejected) and data.mode != "synthesize"
    ]
    plans = [
        place
        for place, data in enumerate(events)
        if isinstance(data, TaskProposed | TaskRejected) and data.mode == "synthesize"
    ]
    assert max(plans) < min(templates, default=len(events))


def test_a_redo_writes_the_same_under_the_same_ids_also_over_its_own_events(app: App) -> None:
    """A leader that was killed behind its events, and before it saw them, proposes again: of a set
    that it wrote, and of one that it used again."""
    for first in (1, 2):
        cycle = run_cycle(app, first)
        again = dict(read_events(app, cycle))
        stored = read_log(app)
        assert {event: stored[event] for event in again} == again
        assert any(isinstance(data, PlansWritten) for data in again.values()) == (first == 1)
        by_plans = [data for data in again.values() if isinstance(data, TaskProposed) and data.plan]
        assert by_plans
        Decisions(app).record(again, cycle.event)
        with app.reading() as connection:
            found = learning.find_cycle(connection, cycle.cycle)
        assert (found.accepted, found.rejected) == (cycle.accepted, cycle.rejected)
        end_cycle(app, cycle)
    assert rebuild(app.log, app.engine).equal is True


def test_revisions_are_kept_and_go_on_in_the_next_cycle(tmp_path: Path) -> None:
    with home(tmp_path / "home", "always", synthesis_plans=4, synthesis_rounds=3) as app:
        cycle = run_cycle(app, make=make_failing)
        with app.reading() as connection:
            (line,) = list_plan_sets(connection, "agent")
            changes = read_plan_changes(connection, line.plans)
            states = {state.plan.plan: state for state in read_plans(connection, line.plans)}
            rejected = {row.event for row in learning.rejections_of(connection, cycle.cycle)}
            modes = Counter(row.mode for row in learning.tasks_of(connection, "agent"))
        assert any(change.kept for change in changes)
        for change in changes:
            assert set(change.failures) <= rejected
        # What plans left, other modes filled.
        assert modes["synthesize"] < 40
        assert modes["synthesize"] + modes["inherit"] + modes["explore"] == cycle.accepted
        assert modes["inherit"] > 0
        stored = read_log(app)
        again = dict(read_events(app, cycle, make_failing))
        assert {event: stored[event] for event in again} == again
        end_cycle(app, cycle)
        later = run_cycle(app, 1, make=make_failing)
        with app.reading() as connection:
            (same,) = list_plan_sets(connection, "agent")
            now = {state.plan.plan: state for state in read_plans(connection, same.plans)}
        assert same.plans == line.plans
        assert all(now[name].revision >= state.revision for name, state in states.items())
        kept = [name for name, state in states.items() if state.revision]
        assert all(now[name].counts.tries > states[name].counts.tries for name in kept)
        stored = read_log(app)
        again = dict(read_events(app, later, make_failing))
        assert {event: stored[event] for event in again} == again
        assert rebuild(app.log, app.engine).equal is True


class Careless:
    """A planner that plans otherwise each time, as a model may."""

    def __init__(self) -> None:
        self.turn = 0

    def __call__(self, environment: Environment, request: PlanRequest) -> PlanDrafts:
        drafts = plan_by_rule(environment, request)
        self.turn += 1
        entries = [
            plan.model_copy(update={"writing": f"{plan.writing} Turn {self.turn}."})
            for plan in drafts.entries
        ]
        return replace(drafts, entries=tuple(entries), writer="careless")


@pytest.mark.parametrize(
    "changes",
    [
        {"synthesis_plans": 4},
        pytest.param({}, marks=pytest.mark.long),
        pytest.param({"synthesis_rounds": 3}, marks=pytest.mark.long),
    ],
)
def test_an_id_has_one_content_whatever_settings_the_next_leader_has(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A broker has the first part of what a leader wrote, and the next leader, on another machine,
    has other settings."""
    planner = Careless()

    def make(environment: Environment, settings: Settings, directive: str) -> Parts:
        writer = FailingWriter(environment)
        return replace(make_parts(environment), planner=planner, writer=writer)

    folder = tmp_path / "home"
    with home(folder, "always") as app:
        record(app, "agent", "base", tasks(("cancel",), 1, 2**24))
        app.settle()
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        leadership = Leadership(app)
        led = Leader(app, CyclePlanner(app, make_parts=wait), leadership).tick()
        assert "the tasks of agent wait" in led.troubles[0]
        leadership.resign()
        with app.reading() as connection:
            cycle = learning.open_cycle(connection, "agent")
        assert cycle is not None
        events = list(CyclePlanner(app, make_parts=make).propose_tasks(cycle).said.items())
        behind = 1 + next(n for n, (_, data) in enumerate(events) if isinstance(data, PlansRevised))
        Decisions(app, led.epoch).record(dict(events[:behind]), cycle.event)
    with home(folder, "always", **changes) as app:
        lead(app, make)
        with app.reading() as connection:
            (line,) = list_plan_sets(connection, "agent")
            states = read_plans(connection, line.plans)
        contents: dict[str, set[str]] = {}
        for event, data in list_log(app):
            contents.setdefault(event, set()).add(data.model_dump_json())
            if isinstance(data, TaskProposed) and data.plan is not None:
                assert data.plan.plans == line.plans
                assert data.plan.plan in {state.plan.plan for state in states}
        assert {len(same) for same in contents.values()} == {1}
        assert planner.turn == 1, "the set on the log is the cycle's"
        assert rebuild(app.log, app.engine).equal is True


def wait(environment: Environment, settings: Settings, directive: str) -> Parts:
    """Write nothing yet."""
    raise CannotSample("the engine is away")


def list_log(app: App) -> list[tuple[str, Any]]:
    """Id and data of each record of the log, repetitions included."""
    (end,) = app.log.end(LEARNING.name)
    events = [
        app.bodies.whole(record).event
        for page in read_all(app.log, LEARNING.name, 0, 0, end)
        for record in page
    ]
    return [(event.envelope.id, event.data) for event in events]


def read_log(app: App) -> dict[str, object]:
    """Id -> what was decided, of all that the log has."""
    return dict(list_log(app))


def test_a_later_cycle_uses_the_set_again_with_its_counts_and_revisions(app: App) -> None:
    earlier = run_cycle(app, 1)
    end_cycle(app, earlier)
    with app.reading() as connection:
        (line,) = list_plan_sets(connection, "agent")
        before = {state.plan.plan: state for state in read_plans(connection, line.plans)}
    cycle = run_cycle(app, 2)
    assert cycle.directive is not None
    (choice,) = cycle.directive.quotas[0].modes
    assert choice.reason.startswith("plans wrote for it in the cycle before")
    with app.reading() as connection:
        (same,) = list_plan_sets(connection, "agent")
        after = {state.plan.plan: state for state in read_plans(connection, same.plans)}
        written = [
            row for row in learning.tasks_of(connection, "agent") if row.cycle == cycle.cycle
        ]
    assert same.plans == line.plans
    assert same.counts.tries > line.counts.tries
    assert any(row.plans == line.plans for row in written)
    for name, state in before.items():
        assert after[name].revision >= state.revision
    assert not any(isinstance(data, PlansWritten) for _, data in read_events(app, cycle))


def test_another_base_gets_a_set_of_its_own(app: App) -> None:
    end_cycle(app, run_cycle(app, 1))
    with app.reading() as connection:
        (line,) = list_plan_sets(connection, "agent")
    with home(app.home, "always") as always:
        run_cycle(always, 2, base="other")
        with always.reading() as connection:
            (old, new) = list_plan_sets(connection, "agent")
    assert (old.plans, old.base, new.base) == (line.plans, "base", "other")
    assert old.counts == line.counts


def test_a_set_with_a_tool_that_is_gone_is_refused_with_the_reason(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_cycle(app, run_cycle(app, 1))
    with app.reading() as connection:
        (line,) = list_plan_sets(connection, "agent")
        plan = read_plans(connection, line.plans)[0].plan
    gone = plan.model_copy(update={"tools": ("fax_order",)})
    revised = PlansRevised.model_validate(
        {
            "plans": line.plans, "alias": "agent", "base": "base", "round": line.rounds + 1,
            "revisions": [
                {
                    "before": {
                        "plans": line.plans, "plan": plan.plan,
                        "revision": _read_revision(app, line.plans, plan.plan),
                    },
                    "plan": gone.model_dump(), "reason": "a tool of an older shop",
                    "failures": ["event"], "tries_before": 1, "accepted_before": 1, "tries": 1,
                    "accepted": 1, "kept": True,
                }
            ],
        }
    )  # fmt: skip
    Decisions(app).record({"revised": revised}, "test")
    cycle = run_cycle(app, 2)
    with app.reading() as connection:
        rejections = learning.rejections_of(connection, cycle.cycle)
        (_, new) = list_plan_sets(connection, "agent")
    (refusal,) = [row for row in rejections if row.mode == "synthesize" and row.plan is None]
    assert refusal.check == "synthesis"
    assert "fax_order" in refusal.reason
    assert line.plans in refusal.reason
    assert new.cycle == cycle.cycle


def _read_revision(app: App, plans: str, plan: str) -> int:
    with app.reading() as connection:
        states = read_plans(connection, plans)
    return next(state.revision for state in states if state.plan.plan == plan)


def test_off_changes_nothing(tmp_path: Path) -> None:
    with home(tmp_path / "home", "off") as app:
        end_cycle(app, run_cycle(app))
        cycle = run_cycle(app, 1)
        with app.reading() as connection:
            modes = {row.mode for row in learning.tasks_of(connection, "agent")}
            assert list_plan_sets(connection) == []
            stored = connection.execute(
                select(Cycle.table().c.directive).where(Cycle.table().c.cycle == cycle.cycle)
            ).scalar_one()
    assert modes <= {"inherit", "explore"}
    assert "modes" not in json.loads(stored)["quotas"][0]


def test_always_begins_with_the_first_cycle(tmp_path: Path) -> None:
    with home(tmp_path / "home", "always", synthesis_rounds=0) as app:
        cycle = run_cycle(app)
        assert cycle.directive is not None
        (choice,) = cycle.directive.quotas[0].modes
        assert choice.reason == 'improve.synthesis is "always"'
        with app.reading() as connection:
            (line,) = list_plan_sets(connection, "agent")
    assert line.counts.accepted > 0
    assert line.rounds == 0


def test_a_plan_of_the_next_cycle_has_its_tasks(app: App) -> None:
    planned = plan_cycle(app, "agent")
    end_cycle(app, run_cycle(app, 0))
    assert any(data.plan is not None for data in planned.accepted)
    with app.reading() as connection:
        assert len(list_plan_sets(connection, "agent")) == 1


def test_a_task_is_explained_down_to_the_rollouts_of_its_pattern(app: App) -> None:
    run_cycle(app, 1)
    with app.reading() as connection:
        task = next(row for row in learning.tasks_of(connection, "agent") if row.plan is not None)
        node = explain(connection, task.task.id)

    def follow(node: Node, *kinds: str) -> Node:
        for kind in kinds:
            node = next(child for child in node.because if child.kind == kind)
        return node

    pattern = follow(node, "plan", "plans", "pattern")
    assert pattern.node == PATTERN
    assert {child.kind for child in pattern.because} == {"rollout"}
    assert "by synthesize: the checks rejected" in node.said


def test_the_status_says_what_plans_do_and_why_not(app: App, tmp_path: Path) -> None:
    def read(app: App) -> Any:
        with app.reading() as connection:
            (practice,) = read_synthesis_practices(connection, app.settings)
        return practice

    due = read(app)
    assert (due.setting, due.sets, due.plans) == ("auto", 0, 0)
    assert due.says.startswith(f"the next cycle has plans write tasks for {PATTERN} (the checks")
    run_cycle(app, 1)
    practice = read(app)
    assert (practice.sets, practice.writers, practice.plans) == (1, ("rules",), 6)
    assert 0 < practice.accepted <= practice.tries
    assert f"6 plans by rules, {practice.accepted} of {practice.tries} tries" in practice.says
    with home(tmp_path / "home", "off") as off:
        assert read(off).says.startswith('off; improve.synthesis = "auto" would have plans write')
        assert not any(item.by_plans for item in read(off).patterns)
    with home(tmp_path / "other") as fresh:
        record(fresh, "agent", "base", tasks(("cancel", "question"), 4))
        fresh.diagnose("diagnose")
        assert read(fresh).says == (
            "waits for a pattern of which the checks reject half of the tries: "
            f"{PATTERN} (no task was tried for it in the cycle before); written by rules"
        )


@pytest.fixture
def configured(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """The same home for commands; synthesis is on."""
    agent = {"alias": "agent", "environment": "shop", "checkpoint": str(CHECKPOINT)}
    monkeypatch.setenv("KINTSUGI_HOME", str(app.home))
    monkeypatch.setenv("KINTSUGI_AGENTS", json.dumps([agent]))
    monkeypatch.setenv("KINTSUGI_PROPOSER__TASKS", "80")
    monkeypatch.setenv("KINTSUGI_IMPROVE__SYNTHESIS", "auto")
    return app


@pytest.mark.long
def test_commands_name_tasks_by_their_plans(configured: App, kintsugi: Kintsugi) -> None:
    cycle = run_cycle(configured, 1)
    shown = kintsugi("cycle", "show", cycle.cycle, "--json").json
    (tried,) = shown["plans"]
    assert tried["writer"] is None
    assert 0 < tried["accepted"] <= tried["tries"]
    text = " ".join(kintsugi("cycle", "show", cycle.cycle).out.split())
    assert f"{tried['accepted']} of {tried['tries']} tries by" in text
    assert "by synthesize: the checks rejected" in text
    with configured.reading() as connection:
        task = next(row for row in learning.tasks_of(connection, "agent") if row.plan is not None)
    one = kintsugi("tasks", "show", task.task.id, "--json").json
    assert (one["mode"], one["plans"], one["plan"]) == ("synthesize", task.plans, task.plan)
    status = kintsugi("status", "--json").json
    (practice,) = status["improve"]["synthesis"]
    assert practice["says"] in " ".join(kintsugi("status").out.split())
    end_cycle(configured, cycle)
    plan = kintsugi("cycle", "plan", "agent", "--json").json
    assert any(item["plan"] is not None for item in plan["tasks"])
    words = " ".join(kintsugi("cycle", "plan", "agent").out.split())
    assert "by plans)" in words


def test_the_bounds_of_the_settings_are_those_of_the_events() -> None:
    assert Improve().synthesis_plans == MOST_PLANS
    assert Improve().synthesis_rounds == MOST_ROUNDS
    for name, bound in (("synthesis_plans", MOST_PLANS), ("synthesis_rounds", MOST_ROUNDS)):
        with pytest.raises(ValueError, match="less than or equal"):
            Improve.model_validate({name: bound + 1})


def test_tasks_by_plans_are_played_by_an_environment_of_another_process(app: App) -> None:
    """What a job, a probe and a gate open: the body is in the tables."""
    from daemon.core.task_definitions import with_definitions

    run_cycle(app, 1)
    environment: Environment = with_definitions(app, open_environment("shop"))
    with app.reading() as connection:
        names = [row.task.id for row in learning.tasks_of(connection, "agent") if row.plan]
    assert all(environment.task(name).id == name for name in names)
