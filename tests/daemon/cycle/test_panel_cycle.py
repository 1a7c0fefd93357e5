"""A cycle that trains for skills, from recorded rollouts of shop to its panel's end: planner, folds
and process manager are real, and the outcomes of jobs, gates and traffic are appended by the test.
Every step is taken by two processes, each of which ends after it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents, learning, serving
from consumers.reads.cycle_state import (
    CYCLE_CANCEL,
    BranchState,
    find_job_cancellations,
    read_cycle_state,
)
from consumers.reads.explanation import explain
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.scheduling import CYCLE_START
from consumers.reads.serving import AdapterRow
from daemon.config.settings import Agent, Improve, Log, Proposer, Settings, Training
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.isolation import Breaks
from daemon.core.leadership import Leadership
from daemon.cycle.account.account import build_document
from daemon.cycle.account.read import read_account
from daemon.cycle.branches import VersionRefusal
from daemon.cycle.cost import read_cost
from daemon.cycle.estimate import JobBudget
from daemon.cycle.leader import Leader
from daemon.cycle.plan import plan_cycle
from daemon.cycle.planner import CyclePlanner
from daemon.cycle.state_machine import Step
from daemon.cycle.views import read_due_steps, read_step
from daemon.cycle.worker import CycleWorker
from daemon.engine.reference.weights import CHECKPOINT
from daemon.evaluation.aims import list_aims, list_jobs
from daemon.jobs.runner_factory import trials_of
from daemon.methods.skills.choice import Teaching, describe_jobs, read_skill_status
from daemon.methods.skills.panel_parts import PanelParts, RouterLesson
from daemon.methods.skills.practice import read_panel_states
from daemon.serving.fleet import Fleet
from daemon.status.snapshot import situation
from events.canonical import exact_json, sha256
from events.envelope import derive_id, parse_timestamp, utc_now
from events.gate import SIBLING, Check, Verdict
from events.jobs import JobSpec, PanelRouter, RouterOption, TaskPool
from events.learning import CycleEnded, JobEnded, SkillsContrasted
from events.lifecycle import State
from events.serving import GateDecided, Panel, PanelComposed
from events.streams import LEARNING
from tests.consumers.deciding import decided, evaluated, moved, produced, routed, staged
from tests.consumers.folding import ended
from tests.consumers.methods.skills.test_skills import CLEAR, contrast, labels
from tests.daemon.controller.test_directive_builder import record, tasks
from tests.daemon.cycle.test_planner import QUIET

CANCEL: Final = "missing_write_action|cancel_order"
EXCHANGE: Final = "missing_write_action|exchange_item"
WEAK: Final = labels(10, 10, 2, 18)
CLAIMED: Final = "its tasks teach cancelling, with a larger contrast"
NO_PRIORITY: Final = "none of its failure patterns has a priority above 0"


@contextmanager
def opened(
    home: Path, router: str = "trained", tasks: int = 4, minutes: float = 480, rounds: int = 1,
    **improve: Any,
) -> Iterator[App]:  # fmt: skip
    settings = Settings(
        home=home, log=Log(durability="process"), proposer=Proposer(tasks=tasks),
        scheduler=QUIET.model_copy(update={"budget_minutes": minutes}),
        training=Training(rounds=rounds),
        agents=(Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
        improve=Improve(
            **{"skills": "panel", "skills_rounds": 99, "skills_router": router, **improve}
        ),
    )  # fmt: skip
    with App(settings) as app:
        yield app


def ask(app: App) -> None:
    """Rollouts in which two kinds of task fail, a comparison that selects four skills, and a person
    who asks for a cycle."""
    record(app, "agent", "base", tasks(("cancel", "fallback", "question"), 8))
    app.settle()
    skills = (
        contrast("cancelling", *10 * [CLEAR], patterns=(CANCEL,), description="It cancels."),
        contrast("changing", *10 * [WEAK], patterns=(CANCEL, EXCHANGE)),
        contrast("also_cancelling", *10 * [WEAK], patterns=(CANCEL,)),
        contrast("flying", *10 * [WEAK], patterns=("wrong_entity|book_flight",)),
    )
    data = SkillsContrasted(
        alias="agent", base="base", since=0, round=0, failures=16, successes=8, skills=skills
    )
    Decisions(app).take(data, "contrasted", "ada")
    Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})


def lead(app: App) -> list[str]:
    """One tick of a new leader; what it said."""
    leadership = Leadership(app)
    result = Leader(app, CyclePlanner(app, teach_chooser=teach_router), leadership).tick()
    leadership.resign()
    assert result.troubles == []
    return result.told


def teach_router(app: App, lesson: RouterLesson) -> JobSpec:
    options = tuple(
        RouterOption(skill=skill, label=chr(65 + n), token=n, description=text)
        for n, (skill, text) in enumerate([*lesson.skills.items(), (None, "Anything else.")])
    )
    return JobSpec(
        job=lesson.job, base=lesson.base, checkpoint=str(lesson.agent.checkpoint),
        environment="shop", teaches="router", router=PanelRouter(options=options),
        pools=tuple(
            TaskPool(name=skill or "no skill", skill=skill, tasks=tuple(tasks))
            for skill, tasks in lesson.tasks.items()
            if tasks
        ),
    )  # fmt: skip


def compose(app: App, parts: PanelParts) -> str:
    options = tuple(
        RouterOption(skill=skill, label=chr(65 + n), token=n, description="")
        for n, skill in enumerate([*(member.skill for member in parts.members), None])
    )
    prompt = parts.prompt or PanelRouter(options=options)
    router = prompt.model_copy(update={"adapter": parts.router})
    panel = Panel(members=parts.members, router=router)
    data = PanelComposed(
        adapter=f"panel-{parts.cycle[:8]}", alias=parts.alias, base=parts.base, panel=panel,
        sha256=sha256(exact_json(panel.model_dump(mode="json"))), cycle=parts.cycle,
    )  # fmt: skip
    Decisions(app).take(data, "panel composed", parts.cause, origin=parts.cycle)
    return f"{data.adapter} is composed"


def work(app: App, composer: Any = compose) -> list[str]:
    """One round of a new worker without engines; what it said."""
    app.settle()
    cycles = CycleWorker(app, Fleet((), app.home), trials_of(app.settings), utc_now, composer)
    failed: list[str] = []
    notes = cycles.advance(Breaks(failed, []))
    assert failed == []
    return notes


def read_cycle(app: App) -> CycleRow:
    with app.reading() as connection:
        (cycle,) = learning.cycles(connection)
    return cycle


def read_jobs(app: App) -> dict[str, JobRow]:
    """Skill, or `router` -> its job."""
    with app.reading() as connection:
        (cycle,) = learning.cycles(connection)
        jobs = learning.list_cycle_jobs(connection, cycle.cycle)
    return {job.branch or job.teaches or "": job for job in jobs}


@dataclass(frozen=True)
class Wanted:
    """A step that is due, and the adapter that it is of."""

    step: Step
    branch: BranchState | None
    row: AdapterRow | None


def list_due(app: App) -> list[Wanted]:
    with app.reading() as connection:
        cycle = learning.open_cycle(connection, "agent")
        (pair,) = agents.present(connection)
        if cycle is None:
            return []
        state, due = read_due_steps(connection, app.settings, cycle, pair)
    return [
        Wanted(item.step, item.branch, item.branch.adapter if item.branch else state.adapter)
        for item in due
    ]


def take(app: App, due: Wanted, rejects: Sequence[str] = ()) -> None:
    """What comes of a step of the role `work`, under ids that follow from its subject."""
    says, branch, row = Decisions(app), due.branch, due.row
    if due.step is Step.TRAIN:
        assert branch is not None
        job, name = branch.job, f"for-{branch.job.branch or 'router'}"
        over = JobEnded(job=job.job, outcome="trained", steps=3, rollouts=64, seconds=60.0)
        made = produced(name).model_copy(update={"job": job.job, "path": f"/adapters/{name}"})
        says.take_all({"over": over, "produced": made}, job.event, origin=job.job)
        return
    if due.step is Step.COMPOSE:
        work(app)
        return
    assert row is not None
    match due.step:
        case Step.STAGE:
            says.take(staged(row.adapter), "staged", row.cause, origin=row.adapter)
        case Step.EVALUATE if row.state is State.STAGED:
            says.take(evaluated(row.adapter), "evaluated", row.cause, origin=row.adapter)
        case Step.EVALUATE:
            verdict = decided(row.adapter, "REJECT" if row.adapter in rejects else "PROMOTE")
            says.take(verdict, "gated", row.cause, origin=row.adapter)
        case Step.ROUTE:
            shares: dict[str | None, float] = {row.adapter: 0.5, None: 0.5}
            says.take(routed("canary", shares), "canary", row.cause, origin=row.adapter)
        case Step.WATCH:
            whole: dict[str | None, float] = {row.adapter: 1.0}
            says.take(routed("promoted", whole), "promoted", row.cause, origin=row.adapter)


def run(home: Path, router: str, rejects: Sequence[str]) -> list[tuple[Step, str]]:
    """Bring the open cycle to its end; the steps that were taken, with their branch. Processes end
    after each step, and each is taken again by another one that saw the same tables."""
    taken: list[tuple[Step, str]] = []
    while True:
        for _ in range(2):
            with opened(home, router) as app:
                lead(app)
                due = list_due(app)
        if not due:
            return taken
        step = due[-1]
        for _ in range(2):
            with opened(home, router) as app:
                take(app, step, rejects)
        branch = step.branch
        taken.append((step.step, "" if branch is None else branch.job.branch or "router"))


def check_next_cycle(app: App) -> None:
    """The next cycle trains on from the member that serves, and for the other skill anew."""
    record(app, "agent", "base", tasks(("cancel", "fallback"), 8, 2**24 + 50))
    app.settle()
    plan = plan_cycle(app, "agent")
    Decisions(app).act(Act("ada", "again"), CYCLE_START, {"alias": "agent"})
    lead(app)
    with app.reading() as connection:
        following = learning.open_cycle(connection, "agent")
        assert following is not None
        later = learning.list_cycle_jobs(connection, following.cycle)
    assert {job.branch: job.spec.parent for job in later} == {
        "cancelling": "/adapters/for-cancelling", "changing": None,
    }  # fmt: skip
    assert {job.branch: job.job for job in plan.jobs} == {job.branch: job.job for job in later}
    assert plan.untaught == {"also_cancelling": CLAIMED, "flying": NO_PRIORITY}


def test_two_skills_have_a_job_each_and_the_others_a_reason(tmp_path: Path) -> None:
    with opened(tmp_path) as app:
        ask(app)
        told = lead(app)
        cycle, jobs = read_cycle(app), read_jobs(app)
        assert cycle.directive is not None
        quotas = [quota.pattern for quota in cycle.directive.quotas]
        assert sorted(quotas) == [CANCEL, EXCHANGE]
        assert {name: job.job for name, job in jobs.items()} == {
            name: derive_id("job", cycle.cycle, name) for name in ("cancelling", "changing")
        }
        assert cycle.job == jobs["cancelling"].job
        targets = {
            name: {pool.name: set(pool.tasks) for pool in job.spec.target_pools}
            for name, job in jobs.items()
        }
        assert {name: list(pools) for name, pools in targets.items()} == {
            "cancelling": [CANCEL], "changing": [EXCHANGE],
        }  # fmt: skip
        for job in jobs.values():
            assert {pool.name for pool in job.spec.pools if pool.replay} >= {"siblings", "traffic"}
            assert job.spec.parent is None
        for skill, reason in (("also_cancelling", CLAIMED), ("flying", NO_PRIORITY)):
            assert any(f"no job for {skill}: {reason}" in text for text in told)
        again = CyclePlanner(app).propose_tasks(cycle)
        with app.reading() as connection:
            teaching = read_skill_status(connection, app.settings, Pair("agent", "base"))
            assert "for the skill changing" in explain(connection, jobs["changing"].job).said
        written = {
            app.bodies.whole(entry).event.envelope.id: app.bodies.whole(entry).event.data
            for entry in app.log.read(LEARNING.name, 0, 0)
        }
        assert all(written[event] == data for event, data in again.said.items())
        assert lead(app) == []
    assert {name: item.state for name, item in teaching.items()} == {
        "cancelling": "training", "changing": "training", "also_cancelling": "untaught",
        "flying": "untaught",
    }  # fmt: skip


def test_without_a_selected_skill_that_fails_a_cycle_is_an_ordinary_one(tmp_path: Path) -> None:
    with opened(tmp_path, skills_jobs=1) as app:
        record(app, "agent", "base", tasks(("cancel", "question"), 6))
        app.settle()
        skills = (contrast("flying", *10 * [CLEAR], patterns=("wrong_entity|book_flight",)),)
        data = SkillsContrasted(
            alias="agent", base="base", since=0, round=0, failures=6, successes=6, skills=skills
        )
        Decisions(app).take(data, "contrasted", "ada")
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        lead(app)
        cycle, (job,) = read_cycle(app), read_jobs(app).values()
    assert (job.job, job.branch) == (derive_id("job", cycle.cycle), None)
    assert [pool.name for pool in job.spec.target_pools] == [CANCEL]


@pytest.mark.parametrize("router", ["trained", pytest.param("labels", marks=pytest.mark.long)])
def test_a_panel_cycle_that_is_killed_after_each_step_takes_each_once(
    tmp_path: Path, router: str
) -> None:
    with opened(tmp_path, router) as app:
        ask(app)
    taken = run(tmp_path, router, rejects=["for-changing"])
    counts = Counter(taken)
    members = [
        (step, name) for step in (Step.TRAIN, Step.STAGE) for name in ("cancelling", "changing")
    ]
    for item in members:
        assert counts[item] == 1
    assert counts[Step.EVALUATE, "cancelling"] == counts[Step.EVALUATE, "changing"] == 2
    trained = [(Step.TRAIN, "router"), (Step.STAGE, "router")] if router == "trained" else []
    assert [item for item in taken if item[1] in ("router", "")] == [
        *trained, (Step.COMPOSE, ""), (Step.STAGE, ""), (Step.EVALUATE, ""), (Step.EVALUATE, ""),
        (Step.ROUTE, ""), (Step.WATCH, ""),
    ]  # fmt: skip
    with opened(tmp_path, router) as app:
        cycle, jobs = read_cycle(app), read_jobs(app)
        assert (cycle.outcome, set(jobs)) == (
            "promoted", {"cancelling", "changing", *(["router"] if trained else [])},
        )  # fmt: skip
        with app.reading() as connection:
            panel = serving.find_adapter(connection, cycle.version or "")
            state = serving.find_adapter(connection, "for-changing").state
            teaching = read_skill_status(connection, app.settings, Pair("agent", "base"))
            assert read_step(connection, app.settings, cycle) is None
            aims = list_aims(connection, list_jobs(connection, panel))
            row = serving.find_adapter(connection, "for-changing")
            others = list_aims(connection, list_jobs(connection, row))
        assert {pattern for pattern, _ in aims} == {CANCEL}, "of the members that it gained"
        assert {pattern for pattern, _ in others} == {EXCHANGE}
        assert panel.composition is not None
        assert [(member.skill, member.adapter) for member in panel.composition.members] == [
            ("cancelling", "for-cancelling")
        ]
        assert panel.composition.router.adapter == ("for-router" if trained else None)
        assert (panel.state, state) == (State.PROMOTED, State.REJECTED)
        assert (teaching["cancelling"].state, teaching["cancelling"].adapter) == (
            "serving", "for-cancelling",
        )  # fmt: skip
        if trained:
            spec = jobs["router"].spec
            pools = {pool.skill: set(pool.tasks) for pool in spec.pools}
            assert set(pools) == {"cancelling", None}
            assert pools["cancelling"] == set(jobs["cancelling"].spec.target_pools[0].tasks)
        check_next_cycle(app)


@pytest.mark.long
def test_a_skill_that_disappears_is_taught_no_more_and_another_base_lacks_none_yet(
    tmp_path: Path,
) -> None:
    """Its job is open when the next comparison has no such skill: what it leaves is served."""
    with opened(tmp_path, "labels") as app:
        ask(app)
        lead(app)
        rest = SkillsContrasted(
            alias="agent", base="base", since=0, round=0, failures=8, successes=8,
            skills=(contrast("cancelling", *10 * [CLEAR], patterns=(CANCEL,)),),
        )  # fmt: skip
        Decisions(app).take(rest, "contrasted again", "ada")
    run(tmp_path, "labels", [])
    with opened(tmp_path, "labels") as app:
        with app.reading() as connection:
            taught = read_skill_status(connection, app.settings, Pair("agent", "base"))
            (panel,) = read_panel_states(connection, utc_now())
        assert {member.skill for member in panel.members} == {"cancelling", "changing", None}
        assert (taught["changing"].state, taught["flying"].state) == ("serving", "untaught")
        record(app, "agent", "base", tasks(("cancel", "fallback"), 8, 2**24 + 50))
        app.settle()
        assert {job.branch for job in plan_cycle(app, "agent").jobs} == {"cancelling"}
        Decisions(app).take(routed("rebased", {None: 1.0}, base="newer"), "another base", "ada")
        record(app, "agent", "newer", tasks(("cancel", "question"), 8))
        app.settle()
        assert situation(app)["skills"] == []
        jobs = plan_cycle(app, "agent").jobs
        assert {job.branch for job in jobs} == {"cancelling", "changing"}, "members are retrained"
        assert {(job.base, job.spec.parent) for job in jobs} == {("newer", None)}


def test_the_account_and_the_cost_of_a_panel_cycle_are_of_all_its_jobs(tmp_path: Path) -> None:
    with opened(tmp_path) as app:
        ask(app)
    run(tmp_path, "trained", rejects=["for-changing"])
    with opened(tmp_path) as app, app.reading() as connection:
        (cycle,) = learning.cycles(connection)
        account, cost = read_account(connection, cycle), read_cost(connection, app.settings, cycle)
        shown = describe_jobs(connection, app.settings, read_cycle_state(connection, cycle))
    assert account is not None
    learner = build_document(account)["stages"]["learner"]
    assert [job["skill"] for job in learner["jobs"]] == ["cancelling", "changing", None]
    assert (learner["outcome"], learner["steps"], learner["rollouts"]) == ("trained", 6, 128)
    assert cost is not None
    assert (cost.job_hours, cost.rollouts.training) == (180 / 3600, 192)
    assert cost.minutes["canary"] is not None
    assert [(job["skill"], job["state"]) for job in shown] == [
        ("cancelling", "gated"), ("changing", "rejected"), (None, "staged"),
    ]  # fmt: skip


def report(decision: str, *checks: tuple[str, Verdict]) -> GateDecided:
    """What the gate says of the adapter for cancelling."""
    said = decided("for-cancelling", "REJECT" if decision == "REJECT" else "PROMOTE")
    listed = tuple(
        Check(name=name, verdict=verdict, value=-0.1, limit=-0.05, tasks=64)
        for name, verdict in checks
    )
    return said.model_copy(update={"report": said.report.model_copy(update={"checks": listed})})


def test_skills_and_jobs_say_where_a_member_is_and_which_checks_rejected_it(
    tmp_path: Path,
) -> None:
    def read(app: App) -> Teaching:
        with app.reading() as connection:
            return read_skill_status(connection, app.settings, Pair("agent", "base"))["cancelling"]

    with opened(tmp_path, "labels", skills_jobs=1) as app:
        ask(app)
        lead(app)
        assert read(app).state == "training"
        take(app, list_due(app)[0])
        assert read(app).state == "produced", "its cycle is open: the next one does not wait"
        for _ in range(2):
            take(app, list_due(app)[0])
        said = report("REJECT", ("target", "FAIL"), (f"{SIBLING}question", "FAIL"))
        row = list_due(app)[0].row
        assert row is not None
        Decisions(app).take(said, "gated", row.cause)
        lead(app)
        waits = read(app)
        Decisions(app).take(moved("for-cancelling", "unloaded", "nobody holds it"), "gone", "ada")
        with app.reading() as connection:
            (cycle,) = learning.cycles(connection)
            (job,) = describe_jobs(connection, app.settings, read_cycle_state(connection, cycle))
    with opened(tmp_path, "labels", skills_jobs=1, skills="watch") as app:
        later = read(app)
    reason = "gate REJECT: target -0.100 (limit -0.050, 64 tasks)"
    assert (cycle.outcome, cycle.ended_because) == ("rejected", f"cancelling rejected: {reason}")
    assert waits.state == "waiting"
    assert (later.state, later.reason, job["reason"]) == ("unloaded", reason, reason)


def test_the_gate_of_an_only_member_is_a_part_of_the_training_that_a_cycle_cost(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, "labels", skills_jobs=1) as app:
        ask(app)
        lead(app)
        while due := list_due(app):
            if due[0].step is Step.EVALUATE and due[0].branch is not None:
                names = [f"{due[0].row and due[0].row.state} {number}" for number in range(3)]
                app.append([ended(name, utc_now(), purpose="evaluate") for name in names])
            take(app, due[0])
            lead(app)
        with app.reading() as connection:
            (cycle,) = learning.cycles(connection)
            cost = read_cost(connection, app.settings, cycle)
            steps = serving.adapter_steps(connection, cycle.version or "")
    assert cost is not None
    until = parse_timestamp(steps[0].time or "") - parse_timestamp(cycle.started or "")
    writing = sum(cost.minutes[stage] or 0.0 for stage in ("diagnose", "direct", "propose"))
    assert cost.minutes["train"] == pytest.approx(until.total_seconds() / 60 - writing)
    assert cost.rollouts.evaluation == 6


def test_a_panel_that_can_never_be_composed_ends_the_cycle_and_gives_its_adapters_up(
    tmp_path: Path,
) -> None:
    def refuse(app: App, parts: PanelParts) -> str:
        raise VersionRefusal(f"no label of {parts.base} is one token")

    with opened(tmp_path, "labels") as app:
        ask(app)
        lead(app)
        while (due := list_due(app))[0].step is not Step.COMPOSE:
            take(app, due[0])
        waits = work(app, None)
        assert waits == ["the panel of cycle 1 of agent waits: nothing composes it"]
        assert any("is rejected: no label of base" in text for text in work(app, refuse))
        lead(app)
        cycle = read_cycle(app)
        with app.reading() as connection:
            states = {row.adapter: row.state for row in serving.route_table(connection).adapters}
    assert cycle.outcome == "rejected"
    assert "cancelling rejected: no label of base is one token" in (cycle.ended_because or "")
    assert set(states.values()) == {State.REJECTED}


def test_a_panel_cycle_that_is_called_off_stops_its_jobs_and_gives_up_what_they_left(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as app:
        ask(app)
        lead(app)
        cycle, jobs = read_cycle(app), read_jobs(app)
        due = next(
            item for item in list_due(app) if item.branch and item.branch.job.branch == "changing"
        )
        for _ in range(4):
            take(app, due)
            due = next(iter(list_due(app)[1:]), due)
        Decisions(app).act(Act("ada", "not now"), CYCLE_CANCEL, {"cycle": cycle.cycle})
        with app.reading() as connection:
            assert set(find_job_cancellations(connection)) == {jobs["cancelling"].job}
        assert lead(app) == [], "its job still runs"
        over = JobEnded(job=jobs["cancelling"].job, outcome="cancelled", reason="called off")
        Decisions(app).take(over, "over", jobs["cancelling"].job)
        lead(app)
        with app.reading() as connection:
            left = serving.find_adapter(connection, "for-changing")
        assert read_cycle(app).outcome == "cancelled"
    assert (left.state, left.reason) == (State.REJECTED, "ada called it off: not now")


@pytest.mark.parametrize("form", ["trained", "head"])
def test_a_member_with_one_task_costs_the_others_nothing_and_the_base_chooses(
    tmp_path: Path, form: str
) -> None:
    with opened(tmp_path, form, tasks=2) as app:
        ask(app)
        lead(app)
        while (due := list_due(app))[0].step is not Step.COMPOSE:
            take(app, due[0])
            assert lead(app) == []
        (note,) = work(app)
        with app.reading() as connection:
            (cycle,) = learning.cycles(connection)
            *_, router = describe_jobs(
                connection, app.settings, read_cycle_state(connection, cycle)
            )
            panel = serving.find_adapter(connection, cycle.version or "")
    assert note.endswith("is composed")
    assert panel.composition is not None
    assert {*panel.members.values()} == {"for-cancelling", "for-changing"}
    assert panel.composition.router.adapter is None
    assert (router["skill"], router["job"]) == (None, None)
    assert router["reason"] == (
        "no job teaches the router, for each member needs 2 tasks of its own, and cancelling has "
        "1, changing has 1; the base chooses among the members"
    )


def test_a_job_more_than_the_day_has_minutes_for_is_not_requested(tmp_path: Path) -> None:
    with opened(tmp_path, minutes=100, rounds=2) as app:
        ask(app)
        told = lead(app)
        jobs = read_jobs(app)
    assert list(jobs) == ["cancelling"], "the first one was asked for when the cycle began"
    reason = "jobs ran 0 minutes today, 1 that are open may take 120 each, and"
    assert any(f"no job for changing: {reason}" in text for text in told)
    rounds = jobs["cancelling"].spec.rounds
    assert rounds is not None
    assert rounds.aims == (CANCEL,), "its rounds write tasks for its own skill"
    budget = JobBudget(spent=100, running=1, minutes=50, budget=250)
    assert [budget.find_refusal(requested) is None for requested in range(3)] == [True, True, False]


def test_a_panel_that_was_composed_while_its_cycle_ended_is_given_up(tmp_path: Path) -> None:
    """The leader did not see it, and nothing would ever take it on."""
    with opened(tmp_path, "labels") as app:
        ask(app)
        lead(app)
        while (due := list_due(app))[0].step is not Step.COMPOSE:
            take(app, due[0])
        work(app)
        cycle = read_cycle(app)
        over = CycleEnded(cycle=cycle.cycle, outcome="cancelled", reason="ada called it off")
        Decisions(app).take(over, "ended", cycle.event)
        (told,) = (text for text in lead(app) if "is rejected" in text)
        assert lead(app) == []
        with app.reading() as connection:
            panel = serving.find_adapter(connection, cycle.version or "")
    assert panel.state is State.REJECTED
    assert panel.reason in told
    assert panel.reason == "its cycle was over when it was composed: ada called it off"
