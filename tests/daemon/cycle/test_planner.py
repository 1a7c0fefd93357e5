"""Cycles from which nothing can be learnt end with the reason: tables, environments and folds are
real."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from sqlalchemy import Row, delete, select

from consumers import database
from consumers.reads import learning, planning
from consumers.reads.explanation import explain
from consumers.reads.learning import CycleRow
from consumers.reads.rollouts import pattern_lines
from consumers.reads.scheduling import CYCLE_START
from consumers.tables import Rollout, TaskBody
from daemon.config.settings import Agent, Environments, Log, Proposer, Scheduler, Settings, Training
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.kind_exclusions import measure_cheats
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.outlook import read_outlooks
from daemon.cycle.planner import CyclePlanner
from daemon.engine.reference.weights import CHECKPOINT
from daemon.jobs.own_successes import read_file
from daemon.proposer.additions import Addition
from daemon.proposer.buffer import SIBLINGS, TRAFFIC
from daemon.proposer.task_buffer import Target, TaskWriter, retire_task
from daemon.solver.rounds.tables import JobTables
from envs.registry import open_place
from envs.task import TaskDefinition
from events.envelope import derive_id, utc_now
from events.jobs import TaskPool
from events.learning import OPERATOR, JobEnded, JobRequested, Quota, TaskProposed, TaskRejected
from events.rollouts import Task
from events.serving import GateDecided
from events.streams import LEARNING
from producers.simulation import Provenance, append_rollouts, build_rollout_event
from tests.consumers.cycling import proposed
from tests.consumers.deciding import evaluated, produced, staged
from tests.consumers.folding import at, ended
from tests.consumers.plans import plans_of
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import SHOP, attempted, record, tasks
from tests.daemon.cycle.test_parent import rejection
from tests.daemon.jobs.test_own_successes import record as session
from tests.daemon.solver import letters

QUIET: Final = Scheduler(min_rollouts=10**6, min_priority=1e9, min_failures=1)


@contextmanager
def home(
    folder: Path,
    given: Sequence[TaskDefinition] = (),
    training: Training | None = None,
    allow_winnable: tuple[str, ...] = (),
    **agent: Any,
) -> Iterator[App]:
    """A home whose agent did these tasks, and forgot the last call of some kinds."""
    named = Agent(**{"alias": "agent", "environment": "shop", "checkpoint": CHECKPOINT, **agent})
    settings = Settings(
        home=folder, log=Log(durability="process"), scheduler=QUIET, agents=(named,),
        proposer=Proposer(tasks=4), training=training or Training(),
        environments=Environments(allow_winnable=allow_winnable),
    )  # fmt: skip
    with App(settings) as app:
        record(app, "agent", "base", given)
        yield app


def ask_planner(app: App) -> tuple[CycleRow | None, list[str]]:
    """The cycle that a person asks for, and what the leader could not do."""
    app.settle()
    Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
    led = Leader(app, CyclePlanner(app), Leadership(app)).tick()
    with app.reading() as connection:
        return next(iter(learning.cycles(connection)), None), led.troubles


def ended_because(app: App) -> str:
    """Of a cycle that found nothing, and asked for no job."""
    cycle, troubles = ask_planner(app)
    assert troubles == []
    assert cycle is not None
    assert (cycle.outcome, cycle.job) == ("nothing_learnable", None)
    with app.reading() as connection:
        assert learning.jobs(connection) == []
    return cycle.ended_because or ""


def test_where_everything_passes_no_pattern_asks_for_a_task(tmp_path: Path) -> None:
    with home(tmp_path, tasks(("question",), 4)) as app:
        assert ended_because(app) == "no failure pattern of the round has a priority above 0"


def test_where_the_environment_knows_no_failed_task_there_is_none_to_follow(
    tmp_path: Path,
) -> None:
    with home(tmp_path, tasks(("cancel",), 4), environment=letters.ENVIRONMENT) as app:
        reason = ended_because(app)
    assert reason.startswith("no failure pattern of the round has a priority above 0; ")
    assert reason.endswith("written task can follow: 4 without a key in shop")


def test_of_all_tasks_that_were_ever_written_one_is_held_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cycle writes more, and whoever leads does so for months."""
    made, read = list[weakref.ref[Task]](), learning._parse_buffer_task

    def counted(row: Row[Any]) -> learning.BufferTask:
        found = read(row)
        made.append(weakref.ref(found.task))
        assert sum(one() is not None for one in made) <= 2
        return found

    given = tasks(("cancel",), 154)
    with home(tmp_path, given[:4]) as app:
        before = {derive_id(one.id): proposed(one.id, None) for one in given[4:]}
        Decisions(app).record(before, "a hand")
        monkeypatch.setattr(learning, "_parse_buffer_task", counted)
        cycle, troubles = ask_planner(app)
    assert troubles == []
    assert cycle is not None
    assert cycle.accepted
    assert len(made) >= 2 * len(before), "directive and tasks follow what was written"


def test_permuting_every_label_of_a_kind_changes_no_task_that_is_written_or_trained_on(
    tmp_path: Path,
) -> None:
    """The label that a recorded task carries is a word for people: what is written follows from
    failed rollouts."""
    kinds = ("cancel", "fallback", "question")
    given = [(one, one.capability) for one in tasks(kinds, 6)]
    other = dict(zip(kinds, (*kinds[1:], kinds[0]), strict=True))
    plain, permuted = (
        _written(tmp_path / name, labelled)
        for name, labelled in (
            ("plain", given),
            ("permuted", [(one, other[label]) for one, label in given]),
        )
    )
    assert permuted == plain
    assert plain.tasks
    assert len(plain.pools) > 1


@dataclass(frozen=True)
class _Written:
    """What a cycle made of recorded rollouts, without the labels of kinds."""

    quotas: tuple[Quota, ...]
    tasks: list[tuple[str, str | None, str, str | None]]
    rejected: list[tuple[str, str, str]]
    pools: tuple[TaskPool, ...]


def _written(folder: Path, labelled: Sequence[tuple[TaskDefinition, str]]) -> _Written:
    with home(folder) as app:
        for task, label in labelled:
            attempt = attempted(task)
            named = replace(attempt, task=task.model_copy(update={"capability": label}))
            data = build_rollout_event(
                named, SHOP, Provenance("agent", "base", "base", "live"), derive_id(task.id)
            )
            append_rollouts(app.spool, app.blobs, [data])
        cycle, troubles = ask_planner(app)
        assert troubles == []
        assert cycle is not None
        assert cycle.directive is not None
        with app.reading() as connection:
            labels = select(Rollout.table().c.task, Rollout.table().c.capability)
            stored = {row.task: row.capability for row in connection.execute(labels)}
            job = learning.job(connection, cycle.job or "")
        assert stored == {task.id: label for task, label in labelled}, "the labels are in the log"
        assert job is not None
        records = [app.bodies.whole(one).event.data for one in app.log.read(LEARNING.name, 0, 0)]
    return _Written(
        cycle.directive.quotas,
        [
            (one.task.id, one.task.definition, one.pattern, one.source_rollout)
            for one in records
            if isinstance(one, TaskProposed)
        ],
        [(one.pattern, one.check, one.reason) for one in records if isinstance(one, TaskRejected)],
        job.spec.pools,
    )


@pytest.mark.parametrize("mode", ["always", "off"])
def test_a_warm_start_is_requested_with_the_successes_that_the_log_holds(
    tmp_path: Path, mode: Literal["always", "off"]
) -> None:
    given = tasks(("cancel",), 4)
    with home(tmp_path, given, training=Training(warm_start=mode)) as app:
        known = session(app, given[0].id)
        session(app, "shop/return/5")
        session(app, given[1].id, grader="shop/1")
        cycle, _ = ask_planner(app)
        assert cycle is not None
        with app.reading() as connection:
            job = learning.job(connection, cycle.job or "")
            assert job is not None
            shown = {name for pool in job.spec.pools for name in pool.successes}
            content = read_file(app, connection, [known])
    assert shown == ({known} if mode == "always" else set())
    warm = job.spec.warm_start
    assert (warm.successes if warm else None) == (
        sha256(content).hexdigest() if mode == "always" else None
    )


def test_a_job_with_rounds_is_told_what_the_history_knows(tmp_path: Path) -> None:
    with home(tmp_path, tasks(("cancel",), 4), training=Training(rounds=3)) as app:
        cycle, _ = ask_planner(app)
        assert cycle is not None
        with app.reading() as connection:
            job = learning.job(connection, cycle.job or "")
            (line,) = pattern_lines(connection, "agent")
            (known,) = planning.read_known_patterns(connection, "agent", "base")
    assert job is not None
    rounds = job.spec.rounds
    assert rounds is not None
    assert (rounds.count, rounds.tasks, rounds.history) == (3, 4, cycle.round)
    assert (rounds.cycle, rounds.alias, rounds.known) == (cycle.cycle, "agent", ())
    assert rounds.patterns == (known,)
    assert (known.pattern, known.status) == (line.pattern, line.status)
    assert known.anchors
    with JobTables(job.spec) as tables, tables.reading() as connection:
        (own,) = pattern_lines(connection, "agent")
    assert (own.pattern, own.priority) == (line.pattern, line.priority)


def test_more_rounds_than_batches_end_the_cycle(tmp_path: Path) -> None:
    training = Training(rounds=5, rollouts=256)
    with home(tmp_path, tasks(("cancel",), 4), training=training) as app:
        assert ended_because(app) == (
            "training.rounds is 5, and training.rollouts (256) has 4 batches of 64; lower "
            "training.rounds"
        )


def test_a_job_replays_fresh_tasks_like_what_is_asked_in_the_words_of_failures(
    tmp_path: Path,
) -> None:
    given = tasks(("cancel", "ineligible", "question"), 12)
    with home(tmp_path, given) as app:
        cycle, troubles = ask_planner(app)
        assert cycle is not None
        with app.reading() as connection:
            job = learning.job(connection, cycle.job or "")
    assert troubles == []
    assert job is not None
    pools = {pool.name: pool for pool in job.spec.pools}
    kinds = {SHOP.task(task).capability for task in pools[SIBLINGS].tasks}
    assert kinds <= {"ineligible", "question"}, "what was passed, and no target"
    assert not set(pools[SIBLINGS].tasks) & {one.id for one in given}
    assert set(pools[TRAFFIC].tasks) == {one.id for one in given}
    assert pools[SIBLINGS].share == pytest.approx(pools[TRAFFIC].share)


def test_the_job_after_a_candidate_that_was_rejected_without_harm_goes_on_from_it(
    tmp_path: Path,
) -> None:
    with home(tmp_path, tasks(("cancel",), 4)) as app:
        leader = Leader(app, CyclePlanner(app), Leadership(app))
        app.settle()
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        assert leader.tick().troubles == []
        with app.reading() as connection:
            (first,) = learning.cycles(connection)
        assert first.job is not None
        candidate = produced("try-1").model_copy(update={"base": "base", "job": first.job})
        gated = GateDecided(adapter="try-1", alias="agent", report=rejection())
        said = [
            JobEnded(job=first.job, outcome="trained"),
            candidate, staged("try-1"), evaluated("try-1"), gated,
        ]  # fmt: skip
        Decisions(app).record(
            {derive_id("said", str(n)): data for n, data in enumerate(said)}, "somebody"
        )
        leader.tick()
        app.settle()
        Decisions(app).act(Act("bob"), CYCLE_START, {"alias": "agent"})
        assert leader.tick().troubles == []
        with app.reading() as connection:
            second = next(iter(learning.cycles(connection)))
            ended_first = learning.cycle(connection, first.cycle)
            words = explain(connection, second.job or "").because[0]
        records = [app.bodies.whole(one).event.data for one in app.log.read(LEARNING.name, 0, 0)]
    assert ended_first is not None
    assert ended_first.outcome == "rejected"
    before, after = (one for one in records if isinstance(one, JobRequested))
    assert (before.parent, before.spec.parent) == (None, None)
    assert after.spec.parent == candidate.path
    assert after.parent is not None
    assert after.parent.adapter == "try-1"
    assert after.parent.reason.startswith("rejected without harm: cancel +4.0 points")
    assert words.node == "try-1"
    assert "the job went on from its weights; rejected; for cancel; gate REJECT" in words.said


def test_what_the_last_candidate_lost_is_replayed_by_the_next_job(tmp_path: Path) -> None:
    with home(tmp_path, tasks(("cancel", "question"), 8)) as app:
        leader = Leader(app, CyclePlanner(app), Leadership(app))
        app.settle()
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        assert leader.tick().troubles == []
        with app.reading() as connection:
            (first,) = learning.cycles(connection)
        assert first.job is not None
        candidate = produced("try-1").model_copy(update={"base": "base", "job": first.job})
        report = rejection(0.04, **{"slice exchange": "FAIL", "overall": "PASS"})
        said = [
            JobEnded(job=first.job, outcome="trained"), candidate, staged("try-1"),
            evaluated("try-1"), GateDecided(adapter="try-1", alias="agent", report=report),
        ]  # fmt: skip
        Decisions(app).record(
            {derive_id("said", str(n)): data for n, data in enumerate(said)}, "somebody"
        )
        app.append(
            [
                ended(
                    f"{policy} {seed}", at(seed), base="base", policy=policy, purpose="evaluate",
                    task=SHOP.generate("exchange", 2**32 + seed).record(),
                    success=policy == "base",
                )
                for policy in ("base", "try-1")
                for seed in range(4)
            ]
        )  # fmt: skip
        leader.tick()
        record(app, "agent", "base", [SHOP.generate("question", seed) for seed in range(50, 54)])
        app.settle()
        Decisions(app).act(Act("bob"), CYCLE_START, {"alias": "agent"})
        assert leader.tick().troubles == []
        with app.reading() as connection:
            second = next(iter(learning.cycles(connection)))
            job = learning.job(connection, second.job or "")
    assert second.number == 2
    assert job is not None
    assert job.spec.parent == candidate.path
    siblings = next(pool for pool in job.spec.pools if pool.name == SIBLINGS)
    kinds = [SHOP.task(task).capability for task in siblings.tasks]
    assert "exchange" in kinds
    seeds = [int(task.split("/")[2]) for task in siblings.tasks]
    assert all(seed < 2**32 for seed in seeds), "and not the gate's own tasks"


OWN: Final = """
from typing import ClassVar
from envs.shop.environment import Shop

class Own(Shop):
    capabilities: ClassVar = {
        kind: Shop.capabilities[kind] for kind in ("cancel", "fallback", "question")
    }
    constant: ClassVar = frozenset(CONSTANT)
"""


def write_own(folder: Path, *constant: str) -> Path:
    path = folder / "own.py"
    path.write_text(f"CONSTANT = {constant!r}\n{OWN}")
    return path


def drawn_kinds(job: learning.JobRow) -> set[str]:
    return {SHOP.task(task).capability for pool in job.spec.pools for task in pool.all_tasks}


def test_no_task_of_a_kind_of_constant_outcome_is_written_or_drawn(tmp_path: Path) -> None:
    given = tasks(("cancel", "fallback", "question"), 12)
    with home(tmp_path / "home", given, environment=str(write_own(tmp_path, "cancel"))) as app:
        cycle, troubles = ask_planner(app)
        with app.reading() as connection:
            (job,) = learning.jobs(connection)
            written = {row.task.capability for row in learning.tasks_of(connection, "agent")}
    assert (troubles, cycle and cycle.outcome) == ([], None)
    assert written == {"fallback"}
    assert "cancel" not in drawn_kinds(job)
    assert job.spec.allowed_winnable == ()


def test_where_every_kind_is_of_constant_outcome_nothing_is_trained(tmp_path: Path) -> None:
    own = write_own(tmp_path, "cancel", "fallback")
    with home(tmp_path / "home", tasks(("cancel", "fallback"), 6), environment=str(own)) as app:
        assert "failures that no written task can follow: 12" in ended_because(app)


@pytest.mark.parametrize("allowed", [(), ("shop/cancel",)])
def test_a_winnable_kind_is_drawn_only_where_the_settings_allow_it_and_the_job_says_so(
    tmp_path: Path, allowed: tuple[str, ...]
) -> None:
    own = str(write_own(tmp_path))
    given = tasks(("cancel", "fallback", "question"), 12)
    with home(tmp_path / "home", given, allow_winnable=allowed, environment=own) as app:
        record = measure_cheats(app.settings, open_place(own))
        won = record.model_copy(update={"winnable": {"cancel": "the cheater recite wins it"}})
        kept = tmp_path / "home" / "environments" / "shop.json"
        kept.write_text(won.model_dump_json())
        ask_planner(app)
        with app.reading() as connection:
            (job,) = learning.jobs(connection)
    assert ("cancel" in drawn_kinds(job)) == bool(allowed)
    assert job.spec.allowed_winnable == (("cancel",) if allowed else ())


def test_where_no_oracle_passes_no_task_survives_its_checks(tmp_path: Path) -> None:
    with home(tmp_path, environment=letters.ENVIRONMENT) as app:
        app.append(
            [
                ended(str(n), at(n), task=Task(id=f"letters/mute/{n}", environment="letters"))
                for n in range(4)
            ]
        )
        reason = ended_because(app)
    assert reason.startswith(
        "no task passed its checks (6 were rejected): policy: the perfect agent"
    )


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ({"checkpoint": None}, "agent agent has no checkpoint, so nothing can be trained for it"),
        (
            {"checkpoint": Path("/models/base")},
            "no learning rate follows from the base: /models/base",
        ),
        ({"environment": "nowhere"}, "nowhere"),
        ({"environment": "/nowhere/at/all.py"}, "/nowhere/at/all.py"),
    ],
)
def test_what_the_settings_cannot_make_is_said_and_ends_the_cycle(
    tmp_path: Path, agent: dict[str, Any], words: str
) -> None:
    with home(tmp_path, tasks(("cancel",), 4), **agent) as app:
        assert words in ended_because(app)
        assert ask_planner(app)[0] is not None, "the next cycle begins"


def test_a_base_of_unknown_size_ends_the_cycle_before_a_task_is_written(tmp_path: Path) -> None:
    """To write tasks may take eight rollouts of each, in every cycle anew."""
    with home(tmp_path, tasks(("cancel",), 4), checkpoint=tmp_path) as app:
        reason = ended_because(app)
        with app.reading() as connection:
            assert list(learning.tasks_of(connection, "agent")) == []
    assert reason.startswith(f"no learning rate follows from the base: {tmp_path} holds neither")
    assert reason.endswith("training.warm_start_lr and training.warm_start_epochs")


def test_without_an_environment_no_cycle_begins_and_the_status_says_why(
    tmp_path: Path, kintsugi: Kintsugi
) -> None:
    with home(tmp_path, tasks(("cancel",), 4), environment=None) as app:
        assert ask_planner(app) == (None, [])
    told = kintsugi("status", "--json", "--home", tmp_path)
    (missing,) = told.json["next_cycle"]["missing"]
    assert "agent has no executable environment" in missing


@pytest.mark.parametrize(("environment", "counted"), [("shop", True), (None, False)])
def test_only_what_a_cycle_may_read_is_counted(
    tmp_path: Path, environment: str | None, counted: bool
) -> None:
    """Without an environment no cycle reads anything, and counting would cost more every day."""
    with home(tmp_path, tasks(("cancel",), 4), environment=environment) as app:
        app.settle()
        with app.reading() as connection:
            plans = plans_of(connection)
            (found,) = read_outlooks(connection, app.settings, utc_now())
    assert (found.environment, found.due) == (environment, False)
    assert any("ix_rollouts_failures" in plan for plan in plans) is counted


def add_tasks(app: App, *definitions: TaskDefinition) -> list[str]:
    """The ids of tasks by content that an operator adds for no pattern."""
    named = [one.name_by_content() for one in definitions]
    writer = TaskWriter(app, Act("ada"), Target("agent", "base", None))
    writer.append([Addition("line 1", one, (), False) for one in named])
    return [one.id for one in named]


def test_what_an_operator_adds_is_drawn_by_the_next_job_and_a_retired_task_is_not(
    tmp_path: Path,
) -> None:
    given = tasks(("cancel", "question"), 8)
    traffic = next(one.id for one in given if one.capability == "question")
    with home(tmp_path, given, training=Training(warm_start="off")) as app:
        first, second, lost = add_tasks(app, *tasks(("return",), 3))
        for name in (second, traffic):
            retire_task(app, Act("ada", "too easy"), "agent", name)
        with database.write_transaction(app.engine) as connection:
            bodies = TaskBody.table()
            connection.execute(delete(bodies).where(bodies.c.task == lost))
        cycle, troubles = ask_planner(app)
        assert (troubles, cycle is not None) == ([], True)
        assert cycle is not None
        with app.reading() as connection:
            job = learning.job(connection, cycle.job or "")
            states = learning.read_inactive_tasks(connection, "agent")
            told = explain(connection, cycle.job or "")
        assert job is not None
    pools = {pool.name: pool for pool in job.spec.pools}
    assert pools[OPERATOR].tasks == (first,)
    drawn = {task for pool in job.spec.pools for task in pool.tasks}
    assert drawn.isdisjoint({second, traffic, lost})
    assert states == {second: "retired", traffic: "retired", lost: "rejected"}
    assert first in [node.node for node in told.because]
