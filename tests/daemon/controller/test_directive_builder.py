"""From recorded rollouts of shop to a directive and to tasks: tables, log and environment are real.

The agent of these rollouts never makes the change that it was asked for in two kinds of task, and
is perfect in the others.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from consumers.reads import rollouts
from daemon.config.settings import Model, Models, Proposer, Settings
from daemon.controller.directive_builder import direct
from daemon.core.app import App
from daemon.proposer.proposer import ProposalRequest, propose
from daemon.proposer.sources import read_pool_entries, read_prior_tasks, read_traffic, sources
from envs.evaluation import Attempt, Setup, make_environment_user, play
from envs.players import LocalPlayer
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.learning import (
    BadTries,
    CycleEnded,
    CycleStarted,
    Decision,
    DirectiveWritten,
    TaskProposed,
    TaskRejected,
)
from events.log import now_ms
from producers.simulation import Provenance, append_rollouts, build_rollout_event
from tests.envs.model_server import Json, ModelServer, said

SHOP = Shop()
FORGOTTEN = {"cancel": "cancel_order", "fallback": "exchange_item"}


def is_forgotten(task: TaskDefinition) -> bool:
    return task.capability in FORGOTTEN


def attempted(
    task: TaskDefinition, forgets: Callable[[TaskDefinition], bool] = is_forgotten
) -> Attempt:
    """By an agent that forgets the last call of some tasks."""

    def agent(given: TaskDefinition, _seed: int) -> LocalPlayer:
        criteria = given.criteria
        if forgets(given):
            gold = (criteria.gold_actions or ())[:-1]
            criteria = criteria.model_copy(update={"gold_actions": gold})
        return LocalPlayer(SHOP.oracle(given.model_copy(update={"criteria": criteria})))

    return asyncio.run(play(Setup(SHOP, agent, make_environment_user(SHOP)), task, 0))


def record(
    app: App,
    alias: str,
    base: str,
    tasks: Sequence[TaskDefinition],
    forgets: Callable[[TaskDefinition], bool] = is_forgotten,
) -> None:
    provenance = Provenance(alias, base, base, "live")
    append_rollouts(
        app.spool,
        app.blobs,
        [
            build_rollout_event(
                attempted(task, forgets), SHOP, provenance, derive_id("test", alias, base, task.id)
            )
            for task in tasks
        ],
    )


def tasks(kinds: Iterable[str], count: int, first: int = 2**24) -> list[TaskDefinition]:
    return [SHOP.generate(kind, first + n) for kind in kinds for n in range(count)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one closed round of two agents."""
    home = tmp_path_factory.mktemp("home")
    with App(Settings(home=home)) as app:
        record(app, "agent", "base", tasks(("cancel", "fallback", "question"), 12))
        record(app, "agent", "other", tasks(("cancel",), 5))
        record(app, "clerk", "base", tasks(("fallback",), 5))
        app.diagnose("diagnose")
    return home


@pytest.fixture
def app(recorded: Path) -> Iterator[App]:
    with App(Settings(home=recorded, proposer=Proposer(tasks=6))) as opened:
        yield opened


def directed(app: App, cycle: str = "cycle-1") -> DirectiveWritten:
    return direct(app, cycle, "agent", "base", 0)


def test_the_directive_is_of_this_agent_on_this_base_alone(app: App) -> None:
    made = directed(app)
    quotas = {quota.pattern: quota for quota in made.directive.quotas}
    assert set(quotas) == {f"missing_write_action|{tool}" for tool in FORGOTTEN.values()}
    assert [quota.tasks for quota in quotas.values()] == [3, 3]
    own = {derive_id("test", "agent", "base", one.id) for one in tasks(FORGOTTEN, 12)}
    for quota in quotas.values():
        assert len(quota.examples) == 8
        assert set(quota.examples) <= own
    assert [one.task for one in made.directive.mastered] == ["find_user+get_order"]
    assert (made.analyzer, made.trouble, made.findings) == (None, "", ())


@pytest.mark.parametrize(("hard", "followed"), [(5, 5), (3, 6)])
def test_a_failure_of_what_the_agent_can_do_is_followed_only_where_few_others_are(
    tmp_path: Path, hard: int, followed: int
) -> None:
    """Both kinds end in a cancellation; in the harder one the order's number has to be found."""
    easy = tasks(("cancel",), 30)
    candidates = tasks(("unknown_order",), 60)
    harder = [task for task in candidates if task.criteria.gold_actions
              and task.criteria.gold_actions[-1].name == "cancel_order"][:hard]  # fmt: skip
    forgotten = {task.id for task in (*easy[:3], *harder)}
    with App(Settings(home=tmp_path)) as opened:
        record(opened, "agent", "base", [*easy, *harder], lambda task: task.id in forgotten)
        opened.diagnose("diagnose")
        (quota,) = directed(opened).directive.quotas
    ours = {derive_id("test", "agent", "base", task.id) for task in harder}
    assert quota.pattern == "missing_write_action|cancel_order"
    assert ours <= set(quota.examples)
    assert len(quota.examples) == followed


def test_a_redo_directs_the_same_and_another_cycle_takes_other_examples(app: App) -> None:
    first = directed(app)
    assert directed(app) == first
    assert directed(app, "cycle-2").directive.quotas != first.directive.quotas


def wanted(app: App, made: DirectiveWritten) -> ProposalRequest:
    with app.reading() as connection:
        return ProposalRequest(
            cycle=made.cycle, alias="agent", base="base", directive=made.directive,
            sources=sources(connection, SHOP, made.directive),
            known=read_prior_tasks(connection, "agent", made.cycle),
        )  # fmt: skip


def test_what_is_held_out_is_drawn_by_no_job_though_it_came_as_traffic(tmp_path: Path) -> None:
    """Somebody measures the agent through the gateway, on the tasks of a report or of a gate."""
    seeds = (7, 2**27 - 1, 2**27, 2**28 - 1, 2**32, 2**32 + 5)
    with App(Settings(home=tmp_path)) as opened:
        record(opened, "agent", "base", [SHOP.generate("question", seed) for seed in seeds])
        opened.diagnose("diagnose")
        with opened.reading() as connection:
            own = read_traffic(connection, SHOP, "agent", "base", 0)
    assert set(own.tasks) == {f"shop/question/{seed}" for seed in seeds[:2]}


def append(app: App, proposals: Sequence[tuple[str, Decision]]) -> None:
    """Append decisions under their ids, and fold them."""
    made = [
        (Envelope(id=name, type=data.TYPE, version=data.VERSION, subject=data.key()), data)
        for name, data in proposals
    ]
    app.append([encode(envelope, data, now_ms()).entry for envelope, data in made])
    app.settle()


def test_what_was_written_is_known_to_the_next_cycle_and_a_redo_writes_the_same(app: App) -> None:
    made = directed(app, "cycle-3")
    proposals = list(propose(SHOP, wanted(app, made)))
    started = CycleStarted(
        cycle="cycle-3", alias="agent", base="base", number=1, environment="shop",
        trigger="operator", reason="a test", position={},
    )  # fmt: skip
    append(app, [("started", started), *((one.id, one.data) for one in proposals)])
    with app.reading() as connection:
        assert rollouts.dead_letters(connection) == []
    assert list(propose(SHOP, wanted(app, made))) == proposals
    later = directed(app, "cycle-4")
    assert later.directive.known == (), "the Proposer reads the buffer itself"
    given = wanted(app, later)
    assert len(given.known) == 6
    written = {one.data.task.id for one in proposals if isinstance(one.data, TaskProposed)}
    again = [one.data for one in propose(SHOP, given) if isinstance(one.data, TaskProposed)]
    assert written.isdisjoint(one.task.id for one in again)
    record(app, "agent", "base", [SHOP.task(sorted(written)[0])])
    app.settle()
    with app.reading() as connection:
        rates = {one.task: one for one in read_pool_entries(connection, "agent", "base")}
        own = read_traffic(connection, SHOP, "agent", "base", 0).tasks
        # Tasks outlive a base; what was made of them on it is nothing on another one.
        elsewhere = read_pool_entries(connection, "agent", "other")
        assert {one.task for one in elsewhere} == set(rates)
        assert not any(one.attempts for one in elsewhere)
    assert set(rates) == written
    attempted_once = rates.pop(sorted(written)[0])
    assert (attempted_once.attempts, attempted_once.passes) == (1, 0)
    assert {(one.attempts, one.passes) for one in rates.values()} == {(0, 0)}
    assert own == sorted(one.id for one in tasks(("cancel", "fallback", "question"), 12))


def test_why_tasks_were_rejected_is_told_to_the_next_cycle_of_the_same_agent(app: App) -> None:
    pattern = "missing_write_action|exchange_item"

    def clerk(cycle: str) -> list[BadTries]:
        return list(direct(app, cycle, "clerk", "base", 0).directive.bad_tries)

    def begins(cycle: str, number: int) -> tuple[str, Decision]:
        return f"{cycle} began", CycleStarted(
            cycle=cycle, alias="clerk", base="base", number=number, environment="shop",
            trigger="operator", reason="a test", position={},
        )  # fmt: skip

    rejected = TaskRejected(
        cycle="clerk-1", alias="clerk", base="base", pattern=pattern, mode="inherit",
        check="novelty", reason="it is there already",
    )  # fmt: skip
    append(app, [begins("clerk-1", 1), ("one", rejected), ("two", rejected)])
    assert clerk("clerk-1") == [], "a cycle is not told of itself: a redo directs the same"
    (told,) = clerk("clerk-2")
    assert (told.pattern, told.mode, told.tries, told.rejected) == (pattern, "inherit", 2, 2)
    assert told.reasons == ("novelty: it is there already",)
    assert not any(one.reasons == told.reasons for one in directed(app).directive.bad_tries)
    other = rejected.model_copy(update={"cycle": "clerk-2", "mode": "explore"})
    ended = CycleEnded(cycle="clerk-1", outcome="rejected", reason="a test")
    append(app, [("ended", ended), begins("clerk-2", 2), ("three", other)])
    assert [one.mode for one in clerk("clerk-3")] == ["explore"], "of the last cycle alone"


def test_an_analyzer_reads_the_conversations_and_gives_words(recorded: Path) -> None:
    def answering(body: Json) -> Json:
        items = [json.loads(line) for line in body["messages"][1]["content"].splitlines()]
        examples = [one["id"] for one in items if one["detected"] and "exchange" in one["detected"]]
        found = {
            "category": "missing_write_action",
            "description": "It never exchanges.",
            "frequency": 1,
            "example_task_ids": examples,
            "root_cause": "It looks and stops.",
        }
        return said(json.dumps({"patterns": [found], "summary": "It stops."}))

    with ModelServer(answering) as server:
        models = Models(analyzer=Model(url=server.url, model="big"))
        with App(Settings(home=recorded, models=models)) as app:
            made = directed(app)
            with app.reading() as connection:
                lines = rollouts.pattern_lines(connection, "agent")
        (request,) = server.requests
    items = [json.loads(line) for line in request["messages"][1]["content"].splitlines()]
    assert sum(not one["passed"] for one in items) == 24
    assert sum(one["passed"] for one in items) == 8
    assert all(one["messages"][0]["role"] == "user" for one in items)
    words = {quota.pattern: quota.description for quota in made.directive.quotas}
    assert words["missing_write_action|exchange_item"] == "It never exchanges."
    assert words["missing_write_action|cancel_order"].startswith("The agent did not")
    assert made.analyzer == "big"
    assert {line.pattern for line in lines} >= set(words)


def test_an_analyzer_in_trouble_is_told_and_changes_nothing_else(recorded: Path, app: App) -> None:
    with ModelServer(lambda _: said("no")) as server:
        models = Models(analyzer=Model(url=server.url))
        settings = Settings(home=recorded, models=models, proposer=Proposer(tasks=6))
        with App(settings) as troubled:
            made = directed(troubled)
    assert "no answer of the schema" in made.trouble
    assert made.directive == directed(app).directive


def test_conversations_that_were_trimmed_are_not_shown(recorded: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(recorded, home)
    shown = []
    with ModelServer(lambda _: said(json.dumps({"patterns": [], "summary": "So."}))) as server:
        models = Models(analyzer=Model(url=server.url, model="big"))
        with App(Settings(home=home, models=models)) as app:
            for halves in (range(4), range(4, 8)):
                for partition in halves:
                    app.spool.trim("rollouts", partition, app.spool.end("rollouts")[partition])
                assert directed(app).trouble in (None, "")
                shown.append(len(server.requests))
    assert shown == [1, 1], "where no conversation is left, nobody is asked"
    items = server.requests[0]["messages"][1]["content"].splitlines()
    assert 0 < len(items) < 32
