"""Live traffic decides about canaries: engine, gateway and `kintsugi work` are processes, and all
that counts is what clients were really answered.

A client plays tasks of the shop through the gateway. What is to be worse is an adapter whose
weights are so far from the base that it gets nothing done. That it ever passed a gate is said by
events that are written here: the tasks of a gate may miss what live traffic shows.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, TypeVar

import httpx2
import pytest

from consumers.reads import gateways, serving
from consumers.reads.outcomes.canary import read_session_verdicts
from daemon.core.decision_log import Act, Decisions
from daemon.serving.canary_monitor import Guards
from daemon.serving.fleet import open_fleet
from daemon.serving.publisher import Publisher
from daemon.serving.push import push
from daemon.serving.sequential_test import ENOUGH
from envs.endpoint import request_seed, wire
from envs.episode import Episode, Party
from envs.grading import grade
from envs.shop.environment import Shop
from events.codec import Event
from events.lifecycle import State
from events.serving import RouteChanged
from ops.faults.serving_scene import BASE, Scene, scene
from ops.random_adapters import SPREAD
from ops.waits import until
from producers.conversation import parse_messages
from producers.gateway.privacy.keys import hash_key, mint_key
from tests.consumers.deciding import decided, evaluated

pytestmark = pytest.mark.processes

ADA: Final = Act("ada", "it is tried")
FAINT: Final = SPREAD / 3
"""Weights of an adapter that does what its base does."""
SPOILT: Final = 30 * SPREAD
"""And of one that gets nothing done."""
SHARES: Final = (0.25, 0.5)
AT_ONCE: Final = 4
MOST_SESSIONS: Final = 200
ROUND: Final = 8
"""Sessions that begin before somebody looks: what was drawn is judged, whoever got it."""

GRADER, STRANGER = mint_key(), mint_key()
KEYS: Final = [
    {"name": "grader", "sha256": hash_key(GRADER), "scopes": ["call", "feedback", "trusted"]},
    {"name": "stranger", "sha256": hash_key(STRANGER), "scopes": ["call", "feedback"]},
]


T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """What runs, and how adapters get there."""

    scene: Scene
    publisher: Publisher

    def adapter(self, alias: str, spread: float) -> str:
        """A new adapter, loaded and proven."""
        self.scene.made += 1
        folder = self.scene.folder / f"version-{self.scene.made}"
        self.scene.maker.write(folder, spread, seed=self.scene.made)
        pushed = push(self.publisher.app, self.publisher.fleet, folder, ADA, alias=alias)
        return self.publisher.stage(pushed.adapter.adapter, ADA).adapter

    def incumbent(self, alias: str, spread: float) -> str:
        """One that answers alone."""
        name = self.adapter(alias, spread)
        self.publisher.promote(name, ADA, override=True)
        self.followed()
        return name

    def canary(self, alias: str, spread: float, incumbent: str | None = None) -> str:
        """One that passed its gate, and has the first share."""
        name, decisions = self.adapter(alias, spread), Decisions(self.scene.app)
        decisions.take(evaluated(name, incumbent), f"{name} evaluated", "a test")
        passed = decided(name, "PROMOTE", incumbent).model_copy(update={"alias": alias})
        decisions.take(passed, f"{name} gated", "a test")
        self.publisher.promote(name, ADA, share=SHARES[0])
        self.followed()
        return name

    def turns(self, alias: str) -> list[Event]:
        """Every change of a route, first to last."""
        return [
            event
            for event in self.scene.read_decisions()
            if isinstance(event.data, RouteChanged) and event.data.alias == alias
        ]

    def changed(self, alias: str) -> list[RouteChanged]:
        return [event.data for event in self.turns(alias) if isinstance(event.data, RouteChanged)]

    def wait_for(self, turns: int, alias: str) -> None:
        """Returns when a route was changed so often, and the gateway has it."""
        until(lambda: len(self.turns(alias)) >= turns, f"{alias} turns")
        self.followed()

    def towards(self, alias: str) -> float:
        """The evidence for the canary of an alias, once all that was said is folded; without one,
        all that can be wanted."""
        self.scene.app.settle()
        with self.scene.app.reading() as connection:
            found = Guards(self.scene.app).look(connection)
        watched = (one.guard.towards for one in found if one.route.alias == alias)
        return next(watched, ENOUGH)

    def state(self, name: str) -> State:
        return self.publisher.adapter(name).state

    def followed(self) -> None:
        """Returns when the gateway has every route."""
        self.scene.app.settle()
        with self.scene.app.reading() as connection:
            wanted = serving.read_decision_offset(connection)
        until(lambda: self._applied() >= wanted, "the gateway follows")

    def _applied(self) -> int:
        with self.scene.app.reading() as connection:
            return min(one.report.position for one in gateways.read_live_gateways(connection, 30))

    def work(self, **settings: str) -> list[str]:
        """A round of `kintsugi work` with these settings besides; the aliases that turned."""
        stage = replace(self.scene, variables={**self.scene.variables, **settings})
        return list(stage.run_json("work", "--once")["routed"])


def several(visit: Callable[[str], T], sessions: Sequence[str]) -> list[T]:
    """Sessions beside each other."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(visit, sessions))


class Agent:
    """An agent of an alias, whose calls a key of the gateway pays for."""

    def __init__(self, stage: Stage, alias: str, key: str) -> None:
        self.alias = alias
        self._shop = Shop()
        self._numbers = count()
        self._client = httpx2.Client(
            base_url=stage.scene.gateway.url, timeout=120, trust_env=False,
            headers={"authorization": f"Bearer {key}"},
        )  # fmt: skip

    def sessions(self, number: int) -> list[str]:
        """Names of new sessions."""
        return [f"{self.alias}-{next(self._numbers)}" for _ in range(number)]

    def drawn(self, number: int) -> dict[str, list[str]]:
        """New sessions that have begun, by who answers them."""
        found = dict[str, list[str]]()
        for session in self.sessions(number):
            found.setdefault(self.greet(session), []).append(session)
        return found

    def held(self, name: str) -> str:
        """A new session that an adapter answers, and that nobody judges."""
        for session in self.sessions(MOST_SESSIONS):
            if self.greet(session) == name:
                return session
        raise AssertionError(f"{name} answers none of {MOST_SESSIONS} sessions")

    def ask(self, session: str, messages: list[dict[str, Any]], **fields: Any) -> tuple[str, Any]:
        """Who answered a call of a session, and what."""
        task = fields.pop("task", None)
        headers = {"x-kintsugi-session": session} | ({"x-kintsugi-task": task} if task else {})
        body = {"model": self.alias, "messages": messages, "max_tokens": 64, **fields}
        answer = self._client.post("/chat/completions", json=body, headers=headers)
        answer.raise_for_status()
        return answer.headers["x-kintsugi-adapter"], answer.json()["choices"][0]["message"]

    def greet(self, session: str) -> str:
        """Who answers the next call of a session."""
        return self.ask(session, [{"role": "user", "content": "Hello"}], max_tokens=1)[0]

    def tell(self, session: str, success: bool) -> None:
        """Say how a session went, which ends it."""
        said = {"session": session, "success": success}
        self._client.post("/feedback", json=said).raise_for_status()

    def attempt(self, session: str, named: bool) -> bool | None:
        """Attempt a task; whether it was done. `named`: the gateway is told which."""
        task = self._shop.generate("cancel", request_seed(session))
        episode, user = Episode(self._shop, task), self._shop.user(task)
        while episode.turn is not None:
            view = episode.view(episode.turn)
            if episode.turn is Party.USER:
                episode.receive(user.reply(view))
                continue
            asked = {"tools": self._shop.schemas(task), "task": task.id if named else None}
            _, answer = self.ask(session, [wire(one) for one in view], seed=len(view), **asked)
            (message,) = parse_messages([answer])
            episode.receive(message)
        return grade(self._shop, task, episode.messages, str(episode.termination)).success

    def end(self, session: str) -> None:
        """Without a word on how it went."""
        self._client.post(f"/sessions/{session}/end").raise_for_status()

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """An engine, a gateway with two keys, and `kintsugi work`."""
    folder = tmp_path_factory.mktemp("canary")
    with (
        scene(
            folder,
            KINTSUGI_GATEWAY__KEYS=json.dumps(KEYS),
            KINTSUGI_CANARY__SHARES=json.dumps(SHARES),
        ) as made,
        open_fleet(made.app.settings) as fleet,
    ):
        worker = made.worker()
        worker.launch()
        try:
            yield Stage(made, Publisher(made.app, fleet))
        finally:
            worker.kill()


def test_a_canary_that_is_worse_is_rolled_back_by_itself(stage: Stage) -> None:
    """Every session names its task, and `kintsugi work` grades it by replay."""
    agent = Agent(stage, "worse", GRADER)
    name = stage.canary("worse", SPOILT)
    held, counts = agent.held(name), {name: 0, BASE: 0}

    def visit(session: str) -> bool | None:
        done = agent.attempt(session, named=True)
        agent.end(session)
        return done

    while len(stage.turns("worse")) < 2:
        for answerer, sessions in agent.drawn(ROUND).items():
            done = set(several(visit, sessions))
            # Of a round in which it is rolled back, what it had moves.
            assert done == {answerer == BASE} or len(stage.turns("worse")) == 2
            counts[answerer] += len(sessions)
        assert sum(counts.values()) <= MOST_SESSIONS, counts
    stage.wait_for(2, "worse")
    assert agent.greet(held) == BASE, "a session that it had moves at its next call"
    agent.close()

    canary, rollback = stage.turns("worse")
    assert rollback.envelope.cause == canary.envelope.id
    route = stage.changed("worse")[-1]
    assert route.why == "rollback"
    assert [(part.adapter, part.share) for part in route.shares] == [(None, 1.0)]
    assert route.evidence is not None
    assert route.evidence.against >= ENOUGH
    assert route.evidence.canary is not None
    assert 2 <= route.evidence.canary.judged == route.evidence.canary.failed <= counts[name]
    assert route.evidence.position["rollouts"]
    assert stage.state(name) is State.ROLLED_BACK


@pytest.mark.long
def test_a_canary_that_is_no_worse_is_promoted_through_its_shares(stage: Stage) -> None:
    """No session names its task; a key that may judge says how they went."""
    incumbent = stage.incumbent("better", SPOILT)
    name = stage.canary("better", FAINT, incumbent)
    agent = Agent(stage, "better", GRADER)

    def visit(session: str) -> None:
        done = agent.attempt(session, named=False)
        assert done is not None
        agent.tell(session, done)

    for turns, wanted in ((3, ENOUGH**0.5), (4, ENOUGH)):
        while stage.towards("better") < wanted:
            (session,) = agent.sessions(1)
            visit(session)
        stage.wait_for(turns, "better")
    assert {agent.greet(session) for session in agent.sessions(4)} == {name}
    agent.close()

    turned = stage.changed("better")
    shares = [{part.adapter: part.share for part in turn.shares} for turn in turned]
    assert [turn.why for turn in turned] == ["operator", "canary", "canary", "promoted"]
    assert shares[1:] == [
        {name: 0.25, incumbent: 0.75}, {name: 0.5, incumbent: 0.5}, {name: 1.0},
    ]  # fmt: skip
    raised, promoted = turned[2].evidence, turned[3].evidence
    assert raised is not None
    assert promoted is not None
    assert ENOUGH**0.5 <= raised.towards < ENOUGH <= promoted.towards
    assert stage.state(name) is State.PROMOTED


@pytest.mark.long
def test_silence_and_strangers_move_nothing_and_time_ends_it(stage: Stage) -> None:
    name = stage.canary("silent", FAINT)
    agent = Agent(stage, "silent", STRANGER)
    sessions = agent.sessions(60)
    answered = several(agent.greet, sessions)
    assert answered.count(name) >= 5
    assert answered.count(BASE) >= 30
    assert stage.work() == [], "silence"

    # By a key that may judge, either half of this would decide.
    for session, by in zip(sessions, answered, strict=True):
        agent.tell(session, success=by == name)
    assert stage.work() == [], "strangers"
    assert [one.why for one in stage.changed("silent")] == ["canary"]
    with stage.scene.app.reading() as connection:
        since = stage.publisher.adapter(name).since
        assert since is not None
        assert read_session_verdicts(connection, "silent", BASE, since) == []

    assert stage.work(KINTSUGI_CANARY__MAX_AGE_SECONDS="0.001") == ["silent"]
    ended = stage.changed("silent")[-1]
    assert (ended.why, [part.adapter for part in ended.shares]) == ("expired", [None])
    assert ended.evidence is not None
    assert (ended.evidence.pairs, ended.evidence.towards) == (0, 1.0)
    stage.followed()
    assert {agent.greet(session) for session in agent.sessions(20)} == {BASE}
    agent.close()
    assert stage.scene.run_json("rebuild")["equal"]
