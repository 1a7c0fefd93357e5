"""Written tasks that fail are examined, and retired where the task is at fault: log, tables, rules
and models' servers are real."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.methods.synthesis.verdicts import read_task_verdicts
from consumers.reads import learning, rollouts
from consumers.reads.explanation import explain
from consumers.reads.learning import CycleRow
from daemon.config.settings import Log, Model, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.cycle.planner import CyclePlanner
from daemon.methods.synthesis import review
from daemon.methods.synthesis.review import LEAST, MOST_OPINIONS, Review, review_tasks
from envs.evaluation import Attempt, Setup, play
from envs.players import LocalPlayer
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from envs.users import User
from events.envelope import derive_id
from events.learning import OPERATOR, PlanName, TaskProposed, TaskRetired
from events.rollouts import Purpose
from events.synthesis.faults import TrajectoryVerified
from producers.simulation import SCRIPTED, Provenance, append_rollouts, build_rollout_event
from tests.consumers.cycling import started
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import tasks
from tests.daemon.cycle.test_planner import ask_planner, home
from tests.envs.faulty_task import plant_task_fault
from tests.envs.faulty_user import FaultyUser
from tests.envs.model_server import NO_ANSWER, Json, ModelServer, Reply, refused, said

SHOP: Final = Shop()
PLAN: Final = PlanName(plans="set", plan="p1")
OTHER: Final = PlanName(plans="set", plan="p2")


def build_faulty(seed: int, kind: str = "cancel") -> TaskDefinition:
    """A task by content whose user names another order than gold has."""
    faulty = plant_task_fault(SHOP, SHOP.generate(kind, seed), "other_text", 0)
    assert faulty is not None
    return faulty.name_by_content()


def build_good(seed: int, kind: str = "cancel") -> TaskDefinition:
    return SHOP.generate(kind, seed).name_by_content()


FAULTY: Final = build_faulty(7)
GOOD: Final = build_good(8)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(Settings(home=tmp_path, log=Log(durability="process"))) as app:
        Decisions(app).record({derive_id("started"): started()}, "a test")
        yield app


def write(app: App, *definitions: TaskDefinition, **fields: Any) -> None:
    """Put tasks by content into the buffer."""
    events = {
        derive_id("written", task.id): TaskProposed(
            **{
                "alias": "agent", "base": "base", "task": task.record(), "pattern": OPERATOR,
                "definition": task.dump_body(), **fields,
            }
        )
        for task in definitions
    }  # fmt: skip
    Decisions(app).record(events, "a test")


def fail(
    app: App,
    task: TaskDefinition,
    count: int = LEAST,
    *,
    passes: int = 0,
    purpose: Purpose = "probe",
    user: Callable[[], User] | None = None,
    simulator: str = "a model",
    silent: bool = False,
) -> list[str]:
    """Record rollouts that fail, and some that pass; return their ids. `user` makes who plays in
    place of the exact one, as `simulator`; `silent`: nothing that was said is recorded."""

    def play_once(number: int) -> Attempt:
        agent = SHOP.oracle(task) if number < passes or user else SHOP.idle_agent(task)
        setup = Setup(
            SHOP,
            lambda *_: LocalPlayer(agent),
            lambda *_: LocalPlayer(SHOP.user(task) if user is None else user()),
            user_may_err=user is not None,
        )
        return asyncio.run(play(setup, task, number))

    provenance = Provenance(
        "agent", "base", "base", purpose, SCRIPTED if user is None else simulator
    )
    names = [derive_id("rollout", task.id, str(number)) for number in range(count)]
    events = [
        build_rollout_event(play_once(number), SHOP, provenance, name)
        for number, name in enumerate(names)
    ]
    if silent:
        events = [event.model_copy(update={"content": None}) for event in events]
    append_rollouts(app.spool, app.blobs, events)
    app.settle()
    return names


def read_cycle(app: App) -> CycleRow:
    with app.reading() as connection:
        (cycle,) = learning.cycles(connection)
    return cycle


def run_review(app: App, analyzer: Model | None = None) -> Review:
    SHOP.use_definitions(lambda task: _read_body(app, task))
    return review_tasks(app, SHOP, read_cycle(app), analyzer)


def _read_body(app: App, task: str) -> str | None:
    with app.reading() as connection:
        return learning.read_task_body(connection, task)


def list_verdicts(review: Review) -> list[TrajectoryVerified]:
    return [data for data in review.decisions.values() if isinstance(data, TrajectoryVerified)]


def test_a_task_at_fault_is_retired_with_its_reason_and_its_siblings_are_reviewed(
    app: App,
) -> None:
    twin, sound, stranger = build_faulty(9), build_good(10), build_faulty(11)
    write(app, FAULTY, twin, sound, plan=PLAN)
    write(app, stranger, plan=OTHER)
    names = fail(app, FAULTY)
    made = run_review(app)
    (verdict,) = list_verdicts(made)
    assert verdict.task == FAULTY.id
    assert verdict.rollout in names
    assert (verdict.fault, verdict.rule) == ("task", "contradiction")
    assert verdict.plan == PLAN
    assert verdict.siblings == (twin.id, sound.id)
    retired = [data for data in made.decisions.values() if isinstance(data, TaskRetired)]
    assert [data.task for data in retired] == [twin.id, FAULTY.id]
    assert made.retired == {twin.id, FAULTY.id}
    assert retired[0].reason.endswith(f"; it was reviewed with {FAULTY.id}")
    assert retired[1].reason.startswith("the task's fault (contradiction): the user names ")
    assert list(made.decisions.values())[-1] is verdict, "a verdict comes after what it brings"


def test_tasks_that_follow_one_failed_task_are_siblings(app: App) -> None:
    (source, again) = fail(app, SHOP.generate("cancel", 1), 2)
    twin, other = build_faulty(9), build_faulty(10)
    write(app, FAULTY, source_rollout=source)
    write(app, twin, source_rollout=again)
    write(app, other, source_rollout="another")
    fail(app, FAULTY)
    (verdict,) = list_verdicts(run_review(app))
    assert verdict.siblings == (twin.id,)


def test_a_redo_decides_the_same_and_what_was_examined_is_not_examined_again(app: App) -> None:
    write(app, FAULTY, GOOD, plan=PLAN)
    fail(app, FAULTY)
    fail(app, GOOD)
    first = run_review(app)
    assert run_review(app).decisions == first.decisions
    assert {verdict.fault for verdict in list_verdicts(first)} == {"task", "trajectory"}
    Decisions(app).record(first.decisions, "a test")
    assert run_review(app).decisions == {}
    with app.reading() as connection:
        assert rollouts.dead_letters(connection) == []
        assert learning.read_inactive_tasks(connection, "agent") == {FAULTY.id: "retired"}


def test_a_redo_after_half_of_the_events_adds_the_other_half(app: App) -> None:
    """The verdict, which says what was examined, comes last."""
    write(app, FAULTY, build_faulty(9), plan=PLAN)
    fail(app, FAULTY)
    first = run_review(app)
    event, data = next(iter(first.decisions.items()))
    Decisions(app).record({event: data}, "a test")
    second = run_review(app)
    assert second.decisions == {
        name: item for name, item in first.decisions.items() if name != event
    }


@pytest.mark.parametrize(("count", "passes"), [(LEAST - 1, 0), (LEAST, LEAST // 2), (8, 4)])
def test_few_failures_examine_no_task(app: App, count: int, passes: int) -> None:
    write(app, GOOD)
    fail(app, GOOD, count, passes=passes)
    assert run_review(app).decisions == {}


def test_a_failure_of_the_agent_retires_nothing(app: App) -> None:
    write(app, GOOD)
    fail(app, GOOD, 8, passes=3)
    made = run_review(app)
    (verdict,) = list_verdicts(made)
    assert (verdict.fault, verdict.rule, verdict.siblings) == ("trajectory", "state", ())
    assert (made.retired, verdict.opinion, verdict.trouble) == (set(), None, "")


def test_a_failure_of_a_user_that_a_model_plays_is_the_users(app: App) -> None:
    write(app, GOOD)
    fail(app, GOOD, user=lambda: FaultyUser(SHOP, GOOD, "refusal", 0))
    (verdict,) = list_verdicts(run_review(app))
    assert (verdict.fault, verdict.rule) == ("user", "instruction")
    assert verdict.reason.startswith("message ")


def test_a_failure_of_an_environments_own_user_that_errs_is_the_users(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(SHOP), "users_err", True)
    write(app, GOOD)
    fail(app, GOOD, user=lambda: FaultyUser(SHOP, GOOD, "refusal", 0), simulator=SCRIPTED)
    (verdict,) = list_verdicts(run_review(app))
    assert (verdict.fault, verdict.rule) == ("user", "instruction")


def test_a_task_is_examined_where_nothing_that_was_said_is_left(app: App) -> None:
    """The log has no messages of rollouts of training: a task's own fault needs none."""
    write(app, FAULTY, GOOD)
    fail(app, FAULTY, purpose="train", silent=True)
    fail(app, GOOD, purpose="train", silent=True)
    (verdict,) = list_verdicts(run_review(app))
    assert (verdict.task, verdict.fault) == (FAULTY.id, "task")


def test_what_is_not_active_or_of_another_environment_is_left_alone(app: App) -> None:
    write(app, FAULTY)
    fail(app, FAULTY)
    retired = TaskRetired(alias="agent", task=FAULTY.id, reason="by hand")
    Decisions(app).record({derive_id("by hand"): retired}, "a test")
    stranger = FAULTY.model_copy(update={"id": "market/cancel/1"})
    write(app, stranger, definition=None)
    fail(app, stranger)
    assert run_review(app).decisions == {}


def test_the_work_of_a_cycle_is_bounded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    definitions = [build_faulty(seed) for seed in range(20, 24)]
    write(app, *definitions, plan=PLAN)
    for definition in definitions:
        fail(app, definition)
    monkeypatch.setattr(review, "MOST_TASKS", 1)
    monkeypatch.setattr(review, "MOST_SIBLINGS", 2)
    made = run_review(app)
    (verdict,) = list_verdicts(made)
    assert len(verdict.siblings) == 2
    assert len(made.retired) == 3


def test_siblings_that_one_cycle_leaves_are_reviewed_by_the_next(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *others = [build_faulty(seed) for seed in range(20, 25)]
    write(app, *others, first, second, plan=PLAN)
    monkeypatch.setattr(review, "MOST_SIBLINGS", 2)
    fail(app, first)
    (verdict,) = list_verdicts(made := run_review(app))
    assert verdict.siblings == (others[0].id, others[1].id)
    Decisions(app).record(made.decisions, "a test")
    fail(app, second)
    (verdict,) = list_verdicts(made := run_review(app))
    assert verdict.siblings == (others[2].id, first.id)
    assert made.retired == {others[2].id, second.id}, "the first is retired already"


def answer_fault(fault: str) -> Callable[[Json], Json]:
    return lambda _: said(json.dumps({"fault": fault, "reason": "I think so."}))


@pytest.mark.parametrize(("fault", "agrees"), [("trajectory", True), ("none", False)])
def test_a_model_is_asked_beside_the_rules_and_decides_nothing(
    app: App, fault: str, agrees: bool
) -> None:
    write(app, GOOD, plan=PLAN)
    fail(app, GOOD)
    with ModelServer(answer_fault(fault)) as server:
        made = run_review(app, Model(url=server.url, model="big"))
    (verdict,) = list_verdicts(made)
    assert verdict.fault == "trajectory"
    assert verdict.opinion is not None
    assert (verdict.agrees, verdict.opinion.model) == (agrees, "big")
    Decisions(app).record(made.decisions, "a test")
    with app.reading() as connection:
        (line,) = read_task_verdicts(connection, GOOD.id, "agent")
    assert line.agrees is agrees
    word = "blames the agent" if agrees else "accepts it"
    assert line.describe().endswith(f"; big {word}")


def test_a_model_that_wants_a_task_retired_retires_none(app: App) -> None:
    write(app, GOOD)
    fail(app, GOOD)
    with ModelServer(answer_fault("task")) as server:
        made = run_review(app, Model(url=server.url))
    assert made.retired == set()


@pytest.mark.parametrize(
    ("reply", "timeout", "why"),
    [
        (refused(401, "no key"), 60, "401"),
        (said("It is the agent."), 60, "gave no answer of the schema"),
        (NO_ANSWER, 0.1, "no whole answer within"),
    ],
)
def test_an_endpoint_without_an_opinion_is_recorded_and_soon_asked_no_more(
    app: App, reply: Reply | Json, timeout: float, why: str
) -> None:
    definitions = [build_good(seed) for seed in range(20, 24)]
    write(app, *definitions)
    for definition in definitions:
        fail(app, definition)
    with ModelServer(lambda _: reply) as server:
        made = run_review(app, Model(url=server.url, timeout_seconds=timeout))
        asked = len(server.requests)
    verdicts = list_verdicts(made)
    assert [verdict.fault for verdict in verdicts] == ["trajectory"] * 4
    assert all(why in verdict.trouble for verdict in verdicts)
    assert [verdict.trouble.startswith("not asked again") for verdict in verdicts] == [
        False, False, True, True,
    ]  # fmt: skip
    assert asked <= 6


def test_a_model_is_asked_about_a_bounded_number_of_rollouts(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = [build_good(seed) for seed in range(20, 23)]
    write(app, *definitions)
    for definition in definitions:
        fail(app, definition)
    assert MOST_OPINIONS > 1
    monkeypatch.setattr(review, "MOST_OPINIONS", 1)
    with ModelServer(answer_fault("trajectory")) as server:
        verdicts = list_verdicts(run_review(app, Model(url=server.url)))
        assert len(server.requests) == 1
    assert [verdict.opinion is None for verdict in verdicts] == [False, True, True]
    assert verdicts[1].trouble == "a model is asked about 1 rollouts a cycle"


def test_a_cycle_that_is_tried_again_is_reviewed_once(app: App) -> None:
    """A tick may have to wait, and what a model says was paid."""
    write(app, GOOD)
    fail(app, GOOD)
    SHOP.use_definitions(lambda task: _read_body(app, task))
    planner, cycle = CyclePlanner(app), read_cycle(app)
    first = planner._methods.review_tasks(SHOP, cycle)
    assert len(list_verdicts(first)) == 1
    write(app, FAULTY)
    fail(app, FAULTY)
    assert planner._methods.review_tasks(SHOP, cycle) is first
    assert len(list_verdicts(run_review(app))) == 2


def read_pools(app: App, cycle: CycleRow) -> Sequence[str]:
    with app.reading() as connection:
        job = learning.job(connection, cycle.job or "")
    assert job is not None
    return [task for pool in job.spec.pools for task in pool.all_tasks]


def test_a_cycle_retires_a_task_at_fault_and_its_job_draws_it_no_more(
    tmp_path: Path, kintsugi: Kintsugi
) -> None:
    pattern = "missing_write_action|cancel_order"
    with home(tmp_path, tasks(("cancel",), 4)) as app:
        write(app, FAULTY, GOOD, pattern=pattern, plan=PLAN)
        fail(app, FAULTY)
        fail(app, GOOD)
        cycle, troubles = ask_planner(app)
        assert troubles == []
        assert cycle is not None
        drawn = read_pools(app, cycle)
        assert FAULTY.id not in drawn
        assert GOOD.id in drawn
        with app.reading() as connection:
            node = explain(connection, FAULTY.id)
            assert rollouts.dead_letters(connection) == []
    assert "retired: the task's fault (contradiction): the user names" in node.said
    (verdict,) = (item for item in node.because if item.kind == "verdict")
    assert verdict.said.startswith("the task's fault (contradiction): ")
    assert verdict.said.endswith("; 1 siblings reviewed")
    assert [item.kind for item in verdict.because] == ["rollout"]
    shown = kintsugi("tasks", "show", FAULTY.id, "--home", str(tmp_path))
    assert "the task's fault (contradiction)" in shown.out
    document = json.loads(kintsugi("tasks", "show", GOOD.id, "--home", str(tmp_path), "--json").out)
    assert [line["fault"] for line in document["verdicts"]] == ["trajectory"]
