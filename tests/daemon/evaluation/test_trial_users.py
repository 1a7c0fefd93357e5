"""A trial whose users a model plays: the same for all players, and named in every rollout."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stamina

from daemon.adapters.directory import WEIGHTS, verify
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.engine.thread import EngineThread
from daemon.evaluation import trial
from daemon.evaluation.plan_program import WrongSetting
from daemon.evaluation.players import Adapter
from daemon.evaluation.trial import Plan, TrialAttempt, play, read_attempts
from daemon.jobs.runner import JOURNAL
from daemon.methods.skills.engine_router import ask, ask_thread
from envs.endpoint import EndpointUnavailable
from envs.shop.environment import Shop
from events.jobs import AdapterUser, EndpointUser, ModelUser
from events.rollouts import MemberChoice
from ops.random_adapters import Maker
from producers.gateway.skills.label_router import RouterAnswer
from tests.daemon.evaluation.test_panel_trial import FORCED, LONG, build_panel, build_plan
from tests.envs.model_server import (
    Json,
    ModelServer,
    Reply,
    answer,
    messages_of,
    on_the_wire,
    refused,
    said,
)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Adapter:
    """An adapter of random weights."""
    folder = Maker(CHECKPOINT).write(tmp_path_factory.mktemp("made") / "stranger", 0.3)
    return Adapter(name="stranger", folder=str(folder), sha256=verify(folder).files[WEIGHTS])


def as_user(adapter: Adapter) -> AdapterUser:
    return AdapterUser(
        adapter=adapter.name, folder=adapter.folder, sha256=adapter.sha256, max_tokens=24
    )


def play_plan(plan: Plan, user: ModelUser, out: Path) -> list[TrialAttempt]:
    plan = plan.model_copy(update={"user": user})
    play(plan, out)
    return [attempt for chunk in read_attempts(out, plan) for attempt in chunk]


def test_an_adapter_plays_the_users_of_all_players_alike(tmp_path: Path, stranger: Adapter) -> None:
    plan = build_plan(None, stranger, build_panel(stranger, "panel", (-FORCED, 0, 0)))
    user = as_user(stranger).model_copy(update={"max_tokens": 1})
    attempts = play_plan(plan, user, tmp_path / "first")
    assert {attempt.head.simulator for attempt in attempts} == {"stranger"}
    assert {attempt.head.termination for attempt in attempts} == {"user_error"}
    assert all(attempt.head.reason and attempt.head.success is None for attempt in attempts)
    assert {attempt.head.grader for attempt in attempts} == {None}
    by_player = [
        [(a.head.reason, a.messages) for a in attempts if a.player == player] for player in range(3)
    ]
    assert all(len(own) == len(plan.tasks) for own in by_player)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    play_plan(plan, user, tmp_path / "second")
    first, second = (tmp_path / name / JOURNAL for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_another_user_makes_another_plan(stranger: Adapter) -> None:
    plan = build_plan(None)
    users: Sequence[ModelUser] = (
        as_user(stranger),
        EndpointUser(url="http://127.0.0.1:1/v1", model="m"),
    )
    plans = [plan.model_copy(update={"user": user}) for user in users]
    assert len({item.digest for item in (plan, *plans)}) == 3
    assert "user" not in plan.model_dump(mode="json")
    assert [Plan.model_validate_json(item.model_dump_json()) for item in plans] == plans


def play_exactly(plan: Plan) -> Any:
    """Answers as the exact users of a plan's tasks do, by the situation in the request."""
    shop = Shop()
    tasks = [shop.task(task) for task in plan.tasks]
    users = {task.scenario.text(): shop.user(task) for task in tasks}

    def answering(body: Json) -> Json:
        system, *spoken = messages_of(body)
        (user,) = (user for text, user in users.items() if system.text.endswith(text))
        turned = [
            message.model_copy(
                update={"role": "user" if message.role == "assistant" else "assistant"}
            )
            for message in spoken
            if not message.text.startswith("(The agent is there")
        ]
        return on_the_wire(user.reply(turned))

    return answering


def test_a_model_behind_an_endpoint_plays_the_users(tmp_path: Path) -> None:
    plan = build_plan(None, None).model_copy(update={"temperature": 1e-6})
    exact = build_plan(None).model_copy(update={"temperature": 1e-6})
    play(exact, tmp_path / "exact")
    expected = [a.head.success for chunk in read_attempts(tmp_path / "exact", exact) for a in chunk]
    with ModelServer(play_exactly(plan)) as server:
        user = EndpointUser(url=server.url, model="customer", candidates=2)
        attempts = play_plan(plan, user, tmp_path / "first")
        assert server.requests[0]["n"] == 2
    assert True in expected
    for player in range(2):
        own = [attempt for attempt in attempts if attempt.player == player]
        assert [attempt.head.success for attempt in own] == expected
        assert all(attempt.tokens > 0 for attempt in own)
    assert {attempt.head.simulator for attempt in attempts} == {"customer (best of 2)"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "it is empty"),
        ("Agent: Your order is cancelled.", "it speaks for the agent"),
        ("My number is 4711-0815-2342.", "it tells '4711-0815-2342', which its situation does not"),
    ],
)
def test_a_bad_user_behind_an_endpoint_has_no_verdict(
    tmp_path: Path, line: str, reason: str
) -> None:
    plan = build_plan(None)
    with ModelServer(lambda _: said(line)) as server:
        attempts = play_plan(plan, EndpointUser(url=server.url, model="m"), tmp_path)
    assert {attempt.head.termination for attempt in attempts} == {"user_error"}
    assert all(reason in str(attempt.head.reason) for attempt in attempts)
    assert {attempt.head.success for attempt in attempts} == {None}


def test_a_trial_asks_no_more_than_its_users_may_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "CHUNK", 1)
    plan = build_plan(None)
    with ModelServer(lambda _: said("")) as server:
        user = EndpointUser(url=server.url, model="m", max_tokens=100, budget=1_500)
        for _ in range(2):
            with pytest.raises(WrongSetting, match=r"models.user.max_tokens is 1,500; raise it"):
                play_plan(plan, user, tmp_path)
            attempts = read_attempts(tmp_path, plan.model_copy(update={"user": user}))
            assert 0 < len(attempts) < len(plan.tasks), "also where it is run again"
        count = len(server.requests)
        larger = user.model_copy(update={"budget": 10**6})
        assert len(play_plan(plan, larger, tmp_path / "larger")) == len(plan.tasks)
    assert len(server.requests) == count + len(plan.tasks)


@pytest.mark.parametrize("failures", [2, 100])
def test_an_endpoint_that_fails_is_asked_again_and_is_no_verdict(
    tmp_path: Path, failures: int
) -> None:
    plan = build_plan(None)
    exactly = play_exactly(plan)
    failed: list[Json] = []

    def answering(body: Json) -> Json | Reply:
        if len(failed) < failures:
            failed.append(body)
            return refused(503, "overloaded")
        line: Json = exactly(body)
        return line

    with ModelServer(answering) as server, stamina.set_testing(True, attempts=1):
        user = EndpointUser(url=server.url, model="m")
        if failures > 2:
            with pytest.raises(EndpointUnavailable, match=r"run the same command to go on$"):
                play_plan(plan, user, tmp_path)
            return
        attempts = play_plan(plan, user, tmp_path)
    assert len(attempts) == len(plan.tasks)
    assert {attempt.head.success for attempt in attempts} <= {True, False}


def test_a_trial_lives_while_its_users_are_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "_HEARTBEAT_SECONDS", 0.05)
    with ModelServer(lambda _: replace(answer(said("")), pause=1.0)) as server:
        play_plan(build_plan(None), EndpointUser(url=server.url, model="m"), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    beats = [json.loads(line)["heartbeat"] for line in lines]
    assert sum(beat["rollouts"] == 0 for beat in beats) >= 3, "before any episode ended"


def test_a_trial_whose_users_endpoint_is_away_is_tried_again(tmp_path: Path) -> None:
    user = EndpointUser(url="http://127.0.0.1:9/v1", model="m")
    with pytest.raises(EndpointUnavailable, match=r"run the same command to go on$"):
        play_plan(build_plan(None), user, tmp_path)


def test_a_panel_plays_with_the_users_of_an_endpoint(tmp_path: Path, stranger: Adapter) -> None:
    plan = build_plan(
        None,
        stranger,
        build_panel(stranger, "to first", (-FORCED, 0, 0)),
        build_panel(stranger, "to none", (0, 0, -FORCED)),
        build_panel(stranger, "in doubt", (0, 0, 0)),
    ).model_copy(update={"temperature": 1e-6})
    with ModelServer(play_exactly(plan)) as server:
        attempts = play_plan(plan, EndpointUser(url=server.url, model="customer"), tmp_path)
    assert {attempt.head.simulator for attempt in attempts} == {"customer"}
    messages = {
        plan.name_policy(player): [a.messages for a in attempts if a.player == player]
        for player in range(len(plan.players))
    }
    assert messages["to first"] == messages["stranger"] != messages["reference"]
    assert messages["to none"] == messages["reference"]
    choices = {
        plan.name_policy(player): {a.head.member for a in attempts if a.player == player}
        for player in range(len(plan.players))
    }
    assert choices.pop("in doubt") <= {
        MemberChoice(skill="first", adapter="stranger"),
        MemberChoice(skill="second"),
        *(MemberChoice(doubt=doubt) for doubt in ("none", "tie", "disagreement")),
    }
    assert choices == {
        "reference": {None},
        "stranger": {None},
        "to first": {MemberChoice(skill="first", adapter="stranger")},
        "to none": {MemberChoice(doubt="none")},
    }


def test_a_router_says_the_same_through_the_engines_thread(stranger: Adapter) -> None:
    policy, chat = Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT)
    router = build_panel(stranger, "p", (0, 0, 0)).router
    texts = ("cancel order 7", "what colour is it?", "order 7 please " * 900)
    conversations = [[{"role": "user", "content": text}] for text in texts]
    long = [*conversations[0], *LONG]

    async def ask_all() -> list[RouterAnswer]:
        thread = EngineThread(Engine(policy, 4))
        thread.start()
        try:
            return [
                await ask_thread(thread, chat, policy, router, messages, ())
                for messages in [*conversations, long]
            ]
        finally:
            await thread.stop()

    answers = asyncio.run(ask_all())
    assert answers == ask(policy, chat, router, [*conversations, long])
    assert answers[-1] == RouterAnswer(None, "failed")
