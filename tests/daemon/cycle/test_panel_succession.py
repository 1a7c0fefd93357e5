"""What becomes of the members of a panel that answers: on a new base they are retrained from their
tasks, and one that a person retired leaves the next panel. Planner, folds and process manager are
real; outcomes of jobs, gates and traffic are appended by the test."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from consumers.methods.skills.old_members import read_old_members
from consumers.reads import learning, serving
from consumers.reads.cycle_state import CYCLE_CANCEL, read_cycle_state
from consumers.reads.explanation import explain
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.scheduling import CYCLE_START
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.cycle.account.read import read_account
from daemon.cycle.cost import read_cost
from daemon.cycle.plan import plan_cycle
from daemon.cycle.planner import CyclePlanner
from daemon.cycle.state_machine import Step
from daemon.evaluation.aims import list_aims, list_jobs
from daemon.methods.skills.panel_parts import PanelParts, gather_parts
from daemon.methods.skills.practice import read_skill_practices
from daemon.methods.skills.retraining import build_retraining_pools, count_passes, list_probe_tasks
from daemon.serving.bases import rebase_routes
from events.envelope import derive_id, utc_now
from events.gate import TargetReport
from events.jobs import JobSpec, TaskPool
from events.learning import JobEnded, JobRequested
from events.lifecycle import State
from events.rollouts import MemberChoice
from events.serving import GateDecided, PanelMember
from producers.simulation import Provenance, append_rollouts, build_rollout_event
from tests.consumers.deciding import decided, evaluated, moved, produced, routed, staged
from tests.consumers.folding import ended
from tests.daemon.controller.test_directive_builder import SHOP, attempted, record, tasks
from tests.daemon.cycle.test_panel_cycle import (
    Wanted,
    ask,
    compose,
    lead,
    list_due,
    opened,
    take,
)
from tests.daemon.serving.test_bases import look

GAINS: Final = {"cancelling": 0.3, "changing": 0.1}
"""Skill -> what the gate of its member measures."""
SESSIONS: Final = 7
"""Live sessions that the member for changing answered; the other one had none."""


def report(adapter: str, gain: float, incumbent: str | None) -> GateDecided:
    verdict = decided(adapter, "PROMOTE", incumbent)
    target = TargetReport(
        name="cancel", kinds={"cancel": 1.0}, tasks=64, gain=gain, low=gain - 0.1, p_value=0.001,
        level=0.05, verdict="PASS",
    )  # fmt: skip
    changed = verdict.report.model_copy(update={"targets": (target,)})
    return verdict.model_copy(update={"report": changed})


def take_on(app: App, due: Wanted, base: str) -> None:
    """What comes of a step on a base, beside its incumbent; under ids that follow from what it is
    of."""
    says, branch, row = Decisions(app), due.branch, due.row
    with app.reading() as connection:
        route = serving.route_row(connection, "agent")
    incumbent = None if route is None else route.standing.incumbent
    if due.step is Step.TRAIN:
        assert branch is not None
        job, name = branch.job, f"{base}-{branch.job.branch}"
        made = produced(name, base=base).model_copy(
            update={"job": job.job, "path": f"/adapters/{name}"}
        )
        over = JobEnded(job=job.job, outcome="trained", steps=3, rollouts=64, seconds=60.0)
        says.take_all({"over": over, "produced": made}, job.event, origin=job.job)
    elif due.step is Step.EVALUATE:
        assert row is not None
        if row.state is State.STAGED:
            says.take(evaluated(row.adapter, incumbent), "evaluated", row.cause, origin=row.adapter)
            return
        gain = 0.0 if branch is None else GAINS[branch.job.branch or ""]
        says.take(report(row.adapter, gain, incumbent), "gated", row.cause, origin=row.adapter)
    elif due.step in (Step.ROUTE, Step.WATCH):
        assert row is not None
        shares: Mapping[str | None, float] = {row.adapter: 1.0}
        turned = routed("promoted", shares, base=base)
        if due.step is Step.ROUTE:
            turned = routed("canary", {row.adapter: 0.5, incumbent: 0.5}, base=base)
        says.take(turned, turned.why, row.cause, origin=row.adapter)
    else:
        take(app, due)


def finish(app: App, base: str) -> CycleRow:
    """Bring the open cycle to its end, each step twice; the cycle."""
    with app.reading() as connection:
        cycle = learning.open_cycle(connection, "agent")
    assert cycle is not None
    while due := list_due(app):
        for _ in range(2):
            take_on(app, due[0], base)
        lead(app)
    with app.reading() as connection:
        over = learning.cycle(connection, cycle.cycle)
    assert over is not None
    return over


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where a panel of two members answers."""
    home = tmp_path_factory.mktemp("panel")
    with opened(home, "labels") as app:
        ask(app)
        lead(app)
        cycle = finish(app, "base")
        assert cycle.outcome == "promoted"
        member = MemberChoice(skill="changing", adapter="base-changing")
        app.append(
            [
                ended(f"live {n}", utc_now(), policy=cycle.version, member=member)
                for n in range(SESSIONS)
            ]
        )
        app.settle()
    return home


@pytest.fixture
def home(promoted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(promoted, tmp_path / "home"))


def rebase(app: App, base: str = "new", first: int = 2**24 + 100) -> None:
    """All engines serve another base, which fails as the old one did."""
    with app.reading() as connection:
        table = serving.route_table(connection)
    (turned,) = rebase_routes(table, look(base))
    (route,) = table.routes
    Decisions(app).take(turned, f"rebased {base}", route.cause)
    record(app, "agent", base, tasks(("cancel", "fallback"), 6, first))
    app.settle()


def start(app: App) -> tuple[CycleRow, list[JobRow], list[str]]:
    """A cycle that a person asks for, its jobs, and what the leader said."""
    Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
    said = lead(app)
    with app.reading() as connection:
        cycle = learning.open_cycle(connection, "agent")
        assert cycle is not None
        return cycle, learning.list_cycle_jobs(connection, cycle.cycle), said


def list_targets(job: JobRow) -> set[str]:
    pools = job.spec.target_pools
    return {task for pool in pools for task in pool.all_tasks}


def test_on_a_new_base_members_are_retrained_from_their_tasks_what_won_most_first(
    home: Path,
) -> None:
    with opened(home, "labels") as app:
        with app.reading() as connection:
            before = {job.branch: list_targets(job) for job in learning.jobs(connection, "agent")}
        rebase(app)
        with app.reading() as connection:
            route = serving.route_row(connection, "agent")
            (practice,) = read_skill_practices(connection, app.settings)
            states = {row.adapter: row.state for row in serving.route_table(connection).adapters}
        assert route is not None
        assert route.standing.adapters == {None}, "the new base answers meanwhile"
        assert states["base-changing"] is State.GATED
        reasons = {
            "changing": "retrained on new from the tasks of base-changing on base, which won 0.7 "
            "sessions (+10.0 points in its gate, 7 sessions)",
            "cancelling": "retrained on new from the tasks of base-cancelling on base, which won "
            "0.0 sessions (+30.0 points in its gate, 0 sessions)",
        }  # fmt: skip
        assert practice.taught == ("changing", "cancelling")
        assert all(reason in practice.says for reason in reasons.values())
        plan = plan_cycle(app, "agent")
        assert plan.retrained == reasons
        cycle, jobs, said = start(app)
        assert [job.branch for job in jobs] == ["changing", "cancelling"]
        assert [job.job for job in jobs] == [job.job for job in plan.jobs]
        assert cycle.accepted == 0
        for job in jobs:
            assert job.branch is not None
            assert job.job == derive_id("job", cycle.cycle, job.branch)
            assert (job.base, job.spec.base, job.spec.parent) == ("new", "new", None)
            assert list_targets(job) == before[job.branch]
            assert any(f"{job.branch} is {reasons[job.branch]}" in text for text in said)
            with app.reading() as connection:
                assert reasons[job.branch] in explain(connection, job.job).said
        again = CyclePlanner(app).propose_tasks(cycle)
        assert again.said == {
            derive_id("job requested", cycle.cycle, data.skill or ""): data
            for data in again.said.values()
            if isinstance(data, JobRequested)
        }
        assert [data.spec for data in again.said.values() if isinstance(data, JobRequested)] == [
            job.spec for job in jobs
        ]
        over = finish(app, "new")
        assert over.outcome == "promoted"
        with app.reading() as connection:
            panel = serving.find_adapter(connection, over.version or "")
            aims = list_aims(connection, list_jobs(connection, panel))
            account, cost = (
                read_account(connection, over),
                read_cost(connection, app.settings, over),
            )
        assert account is not None
        assert cost is not None
        assert cost.rollouts.training == 128
        assert panel.composition is not None
        assert {member.skill: member.adapter for member in panel.composition.members} == {
            "cancelling": "new-cancelling", "changing": "new-changing",
        }  # fmt: skip
        assert {task for _, task in aims} == before["cancelling"] | before["changing"]
        following, later, _ = start(app)
        assert following.accepted, "the usual loop goes on"
        assert all(job.spec.parent != "/adapters/base-changing" for job in later)


def test_a_member_whose_tasks_the_new_base_passes_is_not_retrained_and_one_waits_its_turn(
    home: Path,
) -> None:
    with opened(home, "labels", skills_jobs=1) as app:
        rebase(app)
        cycle, jobs, said = start(app)
        assert [job.branch for job in jobs] == ["changing"]
        assert any("no job for cancelling: a later cycle" in text for text in said)
        assert finish(app, "new").outcome == "promoted"
        with app.reading() as connection:
            members = read_old_members(connection, "agent", "new")
        (passed,) = (member for member in members if member.skill == "cancelling")
        probes = list_probe_tasks(passed)
        append_rollouts(
            app.spool,
            app.blobs,
            [
                build_rollout_event(
                    attempted(SHOP.task(task), forgets=lambda _: False),
                    SHOP,
                    Provenance("agent", "new", "new", "probe"),
                    derive_id("probe", task, str(trial)),
                )
                for task in probes
                for trial in range(8)
            ],
        )
        app.settle()
        assert count_passes(lambda _: 8, SHOP, passed).passes_all
        assert not count_passes(lambda _: 7, SHOP, passed).passes_all, "28 of 32 are too few"
        count = 8 * len(probes)
        reason = f"new passes {count} of {count} rollouts of its tasks"
        with app.reading() as connection:
            (practice,) = read_skill_practices(connection, app.settings)
        assert practice.untaught == {"cancelling": reason}
        cycle, jobs, said = start(app)
        assert any(f"no job for cancelling: {reason}" in text for text in said)
        assert cycle.accepted
        assert [job.branch for job in jobs] == [None], "an ordinary cycle: no comparison selected"


def test_a_member_that_a_person_retired_is_in_no_later_panel_and_no_parent(home: Path) -> None:
    with opened(home, "labels") as app:
        Decisions(app).take(moved("base-changing", "draining", "it annoys"), "retired", "ada")
        record(app, "agent", "base", tasks(("cancel", "fallback"), 6, 2**24 + 100))
        app.settle()
        cycle, jobs, _ = start(app)
        assert {job.branch: job.spec.parent for job in jobs} == {
            "cancelling": "/adapters/base-cancelling", "changing": None,
        }  # fmt: skip
        with app.reading() as connection:
            parts = gather_parts(connection, read_cycle_state(connection, cycle))
        assert [member.adapter for member in parts.members] == ["base-cancelling"]
        assert parts.left == {"changing": "base-changing is draining: it annoys"}


def test_a_base_that_went_away_and_came_back_retrains_what_it_had_begun(home: Path) -> None:
    with opened(home, "labels") as app:
        rebase(app)
        gone, jobs, _ = start(app)
        for job in jobs:
            over = JobEnded(job=job.job, outcome="competence_gap", steps=3, seconds=60.0)
            success = over.model_copy(update={"outcome": "trained"})
            Decisions(app).take(success if job is jobs[0] else over, "over", job.event)
        made = produced("unseen", base="new").model_copy(update={"job": jobs[0].job})
        Decisions(app).take(made, "produced", jobs[0].event)
        rebase(app, "base", 2**24 + 200)
        (told,) = (text for text in lead(app) if "ended, cancelled" in text)
        assert "agent runs on base now, and not on new" in told
        rebase(app, "new", 2**24 + 300)
        cycle, again, _ = start(app)
        assert cycle.cycle != gone.cycle
        assert [job.branch for job in again] == [job.branch for job in jobs]
        Decisions(app).act(Act("ada"), CYCLE_CANCEL, {"cycle": cycle.cycle})
        for job in again:
            over = JobEnded(job=job.job, outcome="cancelled", seconds=6.0)
            Decisions(app).take(over, "over", job.event)
        assert any("ended, cancelled: ada called it off" in text for text in lead(app))
        assert {job.branch for job in start(app)[1]} == {None}, "a person does not want them"


def test_what_a_member_won_counts_each_gain_over_the_sessions_that_came_after_it(
    home: Path,
) -> None:
    with opened(home, "labels") as app:
        record(app, "agent", "base", tasks(("cancel", "fallback"), 6, 2**24 + 100))
        app.settle()
        cycle, jobs, _ = start(app)
        job = next(job for job in jobs if job.branch == "changing")
        assert job.spec.parent == "/adapters/base-changing"
        second = produced("second").model_copy(update={"job": job.job, "path": "/adapters/second"})
        says = Decisions(app)
        with app.reading() as connection:
            route = serving.route_row(connection, "agent")
        assert route is not None
        incumbent = route.standing.incumbent
        says.take(second, "second", cycle.event)
        members = (PanelMember(skill="changing", adapter="second"),)
        parts = PanelParts(cycle.cycle, "agent", "base", cycle.event, members, None, None)
        for name in ("second", compose(app, parts).split()[0]):
            for data in (
                staged(name), evaluated(name, incumbent), report(name, 0.05, incumbent),
            ):  # fmt: skip
                says.take(data, data.TYPE, cycle.event, origin=name)
        canary = routed("canary", {name: 0.5, incumbent: 0.5}, base="base")
        says.take(canary, "canary", cycle.event)
        says.take(routed("promoted", {name: 1.0}, base="base"), "promoted", cycle.event)
        member = MemberChoice(skill="changing", adapter="second")
        app.append([ended(f"later {n}", utc_now(), policy=name, member=member) for n in range(3)])
        app.settle()
        rebase(app)
        with app.reading() as connection:
            (old,) = read_old_members(connection, "agent", "new")
    assert (old.adapter.adapter, old.sessions) == ("second", SESSIONS + 3)
    assert old.gain == pytest.approx(15)
    assert old.won == pytest.approx(0.1 * SESSIONS + 0.15 * 3)


def spec(*pools: TaskPool) -> JobSpec:
    return JobSpec(job="j", base="old", checkpoint="/models/old", environment="shop", pools=pools)


def test_what_a_member_had_learnt_before_is_a_target_again_and_its_references_are_tasks() -> None:
    newest = spec(
        TaskPool(name="a", share=0.4, tasks=("t3",), references=("t4",)),
        TaskPool(name="traffic", share=0.3, tasks=("w1", "w2"), replay=True),
        TaskPool(name="replay", share=0.3, tasks=("t1",), replay=True),
    )
    older = spec(
        TaskPool(name="a", tasks=("t1", "t3")),
        TaskPool(name="b", tasks=("t2", "gone")),
        TaskPool(name="lessons: b", tasks=("l1",), reward="both"),
    )
    drawable = {"t1", "t2", "t3", "t4", "l1", "w2"}
    first, second, traffic = build_retraining_pools([newest, older], drawable, repairs=False)
    assert (first.name, first.tasks, first.references) == ("a", ("t1", "t3", "t4"), ())
    assert (second.name, second.tasks) == ("b", ("t2",))
    assert (traffic.name, traffic.tasks, traffic.replay) == ("traffic", ("w2",), True)
    shares = [first.share, second.share, traffic.share]
    assert shares == pytest.approx([0.3 / 0.7, 0.1 / 0.7, 0.3 / 0.7])
    assert build_retraining_pools([newest, older], {"w1", "l1"}, repairs=False) == ()
