"""Many episodes at once, on shop, with agents behind a real HTTP server and without."""

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from time import sleep
from typing import Any

import pytest

from envs.agents import Agent, NullAgent
from envs.database import Database
from envs.endpoint import Endpoint, EndpointRefusal, EndpointUnavailable, Usage
from envs.environment import Environment, Limits
from envs.episode import Termination
from envs.evaluation import (
    Attempt,
    EnvironmentFailure,
    Setup,
    episode_seed,
    make_environment_user,
    play,
    play_all,
)
from envs.players import LocalPlayer, ModelAgent, Player
from envs.shop.environment import Shop
from envs.simulator import ModelUser
from envs.task import TaskDefinition
from envs.users import STOP
from events.messages import Message
from tests.envs.model_server import Answering, ModelServer, called, oracle, refused, said

SHOP = Shop()
Plan = Sequence[tuple[TaskDefinition, int]]


def tasks(count: int, environment: Environment = SHOP) -> list[TaskDefinition]:
    return list(islice(environment.tasks(), count))


def local(agent: Callable[[TaskDefinition], Agent]) -> Callable[[TaskDefinition, int], Player]:
    """An agent of this process."""
    return lambda task, _: LocalPlayer(agent(task))


def setup_of(
    agent: Callable[[TaskDefinition], Agent], environment: Environment = SHOP, **options: Any
) -> Setup:
    return Setup(environment, local(agent), make_environment_user(environment), **options)


def all_of(setup: Setup, plan: Plan, concurrency: int = 8) -> list[Attempt]:
    """Every attempt, by task and trial."""

    async def run() -> list[Attempt]:
        async with aclosing(play_all(setup, plan, concurrency=concurrency)) as finished:
            return [attempt async for batch in finished for attempt in batch]

    return sorted(asyncio.run(run()), key=lambda attempt: (attempt.task.id, attempt.trial))


def played(
    answering: Answering, plan: Plan, concurrency: int = 8, limits: Limits | None = None
) -> list[Attempt]:
    """The attempts of a model."""

    async def run(url: str) -> list[Attempt]:
        async with Endpoint(
            url, "small", concurrency=concurrency, attempts=2, wait_seconds=0.001
        ) as endpoint:
            setup = Setup(
                SHOP,
                lambda task, seed: ModelAgent(endpoint, SHOP.schemas(task), seed),
                make_environment_user(SHOP),
                limits=limits,
            )
            async with aclosing(play_all(setup, plan, concurrency=concurrency)) as finished:
                return [attempt async for batch in finished for attempt in batch]

    with ModelServer(answering) as server:
        return asyncio.run(run(server.url))


def test_the_oracle_behind_an_endpoint_passes_every_task() -> None:
    given = tasks(22)
    attempts = played(oracle(SHOP, given), [(task, 0) for task in given])
    assert [attempt.success for attempt in attempts] == [True] * 22
    assert {attempt.task.id for attempt in attempts} == {task.id for task in given}
    assert {attempt.termination for attempt in attempts} == {Termination.USER_STOP}
    assert all(attempt.reward and attempt.reward.total == 1.0 for attempt in attempts)


def test_the_usage_of_an_attempt_is_the_sum_of_its_requests() -> None:
    (attempt,) = played(lambda _: said("How interesting."), [(tasks(1)[0], 0)])
    spoken = sum(message.role == "assistant" for message in attempt.messages)
    assert attempt.usage == Usage(spoken, 100 * spoken, 10 * spoken)
    assert attempt.penalties == dict.fromkeys(
        ("authentication", "format", "repetition", "length"), 0.0
    )


def test_seeds_follow_from_run_task_and_trial() -> None:
    task = tasks(1)[0]
    seeds = {episode_seed(run, task.id, trial) for run in range(10) for trial in range(10)}
    assert len(seeds) == 100
    setup = setup_of(lambda _: NullAgent(), seed=3)
    attempt = asyncio.run(play(setup, task, 2))
    assert attempt.seed == episode_seed(3, task.id, 2)


def test_requests_are_made_at_once_up_to_the_concurrency() -> None:
    given = tasks(24)
    with ModelServer(_slow(oracle(SHOP, given))) as server:

        async def run() -> None:
            async with Endpoint(server.url, "small", concurrency=6) as endpoint:
                setup = Setup(
                    SHOP,
                    lambda task, seed: ModelAgent(endpoint, SHOP.schemas(task), seed),
                    make_environment_user(SHOP),
                )
                plan = ((task, 0) for task in given)
                async with aclosing(play_all(setup, plan, concurrency=6)) as finished:
                    assert sum([len(batch) async for batch in finished]) == 24

        asyncio.run(run())
        assert server.most_at_once == 6


def _slow(answering: Answering) -> Answering:
    def slowly(body: Any) -> Any:
        sleep(0.02)
        return answering(body)

    return slowly


def test_tasks_are_made_when_their_turn_comes() -> None:
    made: list[str] = []

    def plan() -> Iterator[tuple[TaskDefinition, int]]:
        for task in SHOP.tasks():
            made.append(task.id)
            yield task, 0

    async def run() -> None:
        setup = setup_of(lambda _: NullAgent())
        async with aclosing(play_all(setup, plan(), concurrency=3)) as finished:
            async for _ in finished:
                break

    asyncio.run(run())
    # Three are played, three wait to be handed on, three were cut off while they waited.
    assert len(made) <= 9


def test_memory_follows_the_concurrency_and_not_the_number_of_episodes() -> None:
    def peak(count: int) -> int:
        async def run() -> None:
            plan = islice(SHOP.mixture({"cancel": 1}), count)
            episodes = play_all(setup_of(SHOP.oracle), ((task, 0) for task in plan), concurrency=16)
            async with aclosing(episodes) as finished:
                async for _ in finished:
                    pass

        tracemalloc.start()
        asyncio.run(run())
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(40)
    assert peak(200) < 1.5 * peak(50)


class Faulty(Shop):
    """Shop with a fault of its own in one place."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def pristine(self, task: TaskDefinition) -> Database:
        self._fail("pristine")
        return super().pristine(task)

    def policy(self, task: TaskDefinition) -> str:
        self._fail("policy")
        return super().policy(task)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        self._fail("violations")
        return super().violations(task, messages)

    def _fail(self, place: str) -> None:
        if place == self.place:
            raise KeyError(f"nothing in {place}")


@pytest.mark.parametrize("place", ["pristine", "policy", "violations"])
def test_a_fault_of_the_environment_names_the_task_and_stops_the_run(place: str) -> None:
    environment = Faulty(place)
    given = tasks(3)
    setup = setup_of(lambda _: NullAgent(), environment)
    with pytest.raises(EnvironmentFailure) as error:
        all_of(setup, [(task, 0) for task in given], concurrency=1)
    assert f"environment shop, task {given[0].id}: KeyError: 'nothing in {place}'" in str(
        error.value
    )


def test_what_was_finished_before_a_fault_is_handed_on_first() -> None:
    given = tasks(3)

    def plan() -> Iterator[tuple[TaskDefinition, int]]:
        yield from ((task, 0) for task in given)
        raise EnvironmentFailure("no more")

    async def run() -> list[str]:
        found = []
        try:
            async for batch in play_all(setup_of(SHOP.oracle), plan(), concurrency=2):
                found += [attempt.task.id for attempt in batch]
        except EnvironmentFailure:
            found.append("stopped")
        return found

    assert asyncio.run(run())[-1] == "stopped"
    assert len(asyncio.run(run())) == 4


@pytest.mark.parametrize(
    ("answering", "termination", "success"),
    [
        (lambda _: called("find_user", "{malformed"), Termination.TOO_MANY_ERRORS, False),
        (lambda _: called("no_such_tool", {}), Termination.TOO_MANY_ERRORS, False),
        (lambda _: called("find_user", {"name": 7, "zip": []}), Termination.TOO_MANY_ERRORS, False),
        (
            lambda _: called("find_user", {"name": "x" * (1 << 20), "zip": ""}),
            Termination.TOO_MANY_ERRORS,
            False,
        ),
        (lambda _: said(""), Termination.AGENT_ERROR, False),
        (lambda _: refused(500, "on fire"), Termination.INFRASTRUCTURE_ERROR, None),
    ],
)
def test_whatever_an_agent_does_its_attempt_has_an_end(
    answering: Answering, termination: Termination, success: bool | None
) -> None:
    (attempt,) = played(answering, [(tasks(1)[0], 0)])
    assert attempt.termination is termination
    assert attempt.success is success
    assert attempt.reason


def test_an_agent_that_makes_one_good_call_for_ever_is_cut_off() -> None:
    (task,) = tasks(1)
    first, *_ = task.criteria.gold_actions or ()
    (attempt,) = played(lambda _: called(first.name, first.arguments), [(task, 0)])
    assert attempt.termination is Termination.MAX_STEPS
    assert attempt.success is False
    assert attempt.penalties["repetition"] == -0.1


def test_an_agent_that_writes_without_end_is_cut_off() -> None:
    novel = called("find_user", {"name": "x" * (3 << 20), "zip": ""})
    (attempt,) = played(lambda _: novel, [(tasks(1)[0], 0)], limits=Limits(max_errors=100))
    assert attempt.termination is Termination.AGENT_ERROR
    assert "characters in one episode" in attempt.reason
    assert sum(message.role == "assistant" for message in attempt.messages) == 5


def play_with_user(answering: Answering, task: TaskDefinition) -> Attempt:
    """One attempt of the oracle with a user whom a model plays."""

    async def run(url: str) -> Attempt:
        async with Endpoint(url, "small", attempts=1) as endpoint:
            setup = Setup(
                SHOP,
                local(SHOP.oracle),
                lambda task, seed: ModelUser(endpoint, task, seed),
            )
            return await play(setup, task, 0)

    with ModelServer(answering) as server:
        return asyncio.run(run(server.url))


def test_a_user_that_fails_is_no_failure_of_the_agent() -> None:
    attempt = play_with_user(lambda _: said("Agent: all done"), tasks(1)[0])
    assert attempt.termination is Termination.USER_ERROR
    assert (attempt.grade, attempt.success, attempt.reward) == (None, None, None)
    assert attempt.remarks


def test_a_model_can_play_the_user() -> None:
    (task,) = tasks(1)
    assert task.script is not None
    lines = iter([task.script.opening, *[one.says for one in task.script.answers], STOP])
    attempt = play_with_user(lambda _: said(next(lines, STOP)), task)
    assert attempt.success is True
    assert attempt.user_usage.requests >= 3


def test_machines_that_keep_failing_stop_the_run() -> None:
    with pytest.raises(EndpointUnavailable, match="10 episodes in a row") as error:
        played(lambda _: refused(500, "on fire"), [(task, 0) for task in tasks(30)])
    assert "on fire" in str(error.value)


def test_a_configuration_that_is_wrong_stops_the_run_at_the_first_request() -> None:
    requests: list[Any] = []

    def answering(body: Any) -> Any:
        requests.append(body)
        return refused(404, "no such model")

    with pytest.raises(EndpointRefusal, match="no such model"):
        played(answering, [(task, 0) for task in tasks(30)], concurrency=1)
    assert len(requests) == 1


def test_a_run_is_the_same_whatever_the_concurrency() -> None:
    plan = [(task, trial) for task in tasks(10) for trial in range(2)]
    setup = setup_of(SHOP.oracle)
    assert all_of(setup, plan, concurrency=1) == all_of(setup, plan, concurrency=7)
