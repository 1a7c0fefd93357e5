"""The policy that answers now plays a written task at a real engine before it is taken."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from consumers.reads import rollouts
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.proposer.candidate import CannotSample, CheckFailure
from daemon.proposer.probe import Engine, ProbeBudget, Prober, ProbeTarget
from daemon.proposer.proposer import propose
from daemon.proposer.verification import SAMPLES
from envs.endpoint import Sampling
from envs.task import TaskDefinition
from events.codec import decode
from events.jobs import AdapterUser, EndpointUser
from events.learning import TaskProposed
from events.rollouts import RolloutEnded
from ops.random_adapters import Maker
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.proposer.test_proposer import PATTERN, SHOP, source, wanted
from tests.envs.faulty_shop import FaultyShop
from tests.envs.model_server import (
    Answering,
    Json,
    ModelServer,
    messages_of,
    on_the_wire,
    refused,
    said,
)

EASY, HARD = SHOP.generate("cancel", 2**28), SHOP.generate("two_writes", 2**28 + 1)


@pytest.fixture(scope="module")
def engine() -> Iterator[Live]:
    with listening(Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT), slots=24) as live:
        yield live


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(Settings(home=tmp_path / "home")) as opened:
        opened.settle()
        yield opened


def probed(url: str, **changes: Any) -> ProbeTarget:
    given: dict[str, Any] = {
        "cycle": "cycle-1", "alias": "agent", "base": "reference", "policy": "reference",
        "engine": Engine(f"{url}/v1"), "sampling": Sampling(1.0, 64),
    }  # fmt: skip
    return ProbeTarget(**(given | changes))


def prober(app: App, url: str, budget: ProbeBudget | None = None, **changes: Any) -> Prober:
    return Prober(app, SHOP, probed(url, **changes), budget=budget)


def recorded(app: App) -> list[RolloutEnded]:
    events = [
        decode(record).data
        for partition in range(len(app.spool.end("rollouts")))
        for record in app.spool.read("rollouts", partition, 0)
    ]
    return [data for data in events if isinstance(data, RolloutEnded)]


def test_a_task_is_played_eight_times_and_never_again(app: App, engine: Live) -> None:
    found = {task.id: prober(app, engine.url)(task) for task in (EASY, HARD)}
    assert found[EASY.id] == SAMPLES, "the reference policy can do this"
    assert found[HARD.id] < SAMPLES, "and this it cannot"
    played = recorded(app)
    assert len(played) == len({one.rollout for one in played}) == 2 * SAMPLES
    assert {(one.purpose, one.policy, one.simulator) for one in played} == {
        ("probe", "reference", "scripted")
    }
    app.settle()
    # Whoever goes on reads what was played: here nobody could play it.
    again = {task.id: prober(app, "http://127.0.0.1:9")(task) for task in (EASY, HARD)}
    assert again == found
    assert len(recorded(app)) == len(played)


def test_who_is_told_to_stop_begins_nothing(app: App, engine: Live) -> None:
    stopped = Prober(app, SHOP, probed(engine.url), lambda: True)
    with pytest.raises(CannotSample, match="told to stop"):
        stopped(EASY)
    assert recorded(app) == []
    prober(app, engine.url)(EASY)
    app.settle()
    assert stopped(EASY) == SAMPLES, "what was played is known"


def test_a_log_that_refuses_rejects_no_task(app: App, engine: Live) -> None:
    app.settle()
    app.spool.close()
    given = wanted({PATTERN: [source("cancel")]}, 1, sampler=prober(app, engine.url))
    with pytest.raises(CannotSample, match="cannot be recorded"):
        list(propose(SHOP, given))


def test_what_was_probed_counts_for_no_pattern(app: App, engine: Live) -> None:
    assert prober(app, engine.url)(HARD) < SAMPLES
    app.diagnose("diagnose")
    with app.reading() as connection:
        assert rollouts.pattern_lines(connection) == []
        assert rollouts.dead_letters(connection) == []


def test_a_written_task_says_how_the_policy_did(app: App, engine: Live) -> None:
    given = wanted({PATTERN: [source("two_writes")]}, 2, sampler=prober(app, engine.url))
    accepted = [one.data for one in propose(SHOP, given) if isinstance(one.data, TaskProposed)]
    assert accepted
    for one in accepted:
        last = one.verified[-1]
        assert (last.check, len(one.verified)) == ("informative", 10)
        assert last.note.endswith(f" of {SAMPLES}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": Engine("http://127.0.0.1:9/v1")}, "127.0.0.1:9"),
        ({"policy": "nobody"}, "nobody"),
    ],
)
def test_an_engine_that_cannot_be_asked_rejects_no_task(
    app: App, engine: Live, changes: dict[str, Any], said: str
) -> None:
    given = wanted({PATTERN: [source("cancel")]}, 1, sampler=prober(app, engine.url, **changes))
    with pytest.raises(CannotSample, match=said):
        list(propose(SHOP, given))
    assert recorded(app) == []


def test_a_user_whose_endpoint_refuses_is_named_and_not_the_agent(app: App, engine: Live) -> None:
    named = "the users of a task cannot be played: the user's model: "
    with ModelServer(lambda _: refused(404, "no model 'large'")) as server:
        probe = prober(app, engine.url, user=EndpointUser(url=server.url, model="large"))
        for models, reason in (
            (server.models, f"{server.url} refuses to serve: HTTP 404: no model 'large'"),
            (refused(500, "on fire"), f"{server.url}/models answers HTTP 500: on fire"),
        ):
            server.models = models
            with pytest.raises(CannotSample) as refusal:
                probe(EASY)
            assert str(refusal.value).startswith(named + reason)
    with pytest.raises(CannotSample) as refusal:
        probe(EASY)
    assert str(refusal.value).startswith(f"{named}{server.url} cannot be reached")
    with pytest.raises(CannotSample, match=r"^nobody cannot be asked about a task: "):
        prober(app, engine.url, policy="nobody")(EASY)


def test_an_answer_of_the_users_endpoint_that_never_comes_is_the_users(
    app: App, engine: Live
) -> None:
    with ModelServer(lambda _: refused(500, "on fire")) as server:
        user = EndpointUser(url=server.url, model="large")
        with pytest.raises(CannotSample, match=r"cannot be played .*: the user's model: HTTP 500"):
            prober(app, engine.url, user=user)(EASY)


def answer_as_user(task: TaskDefinition, spoilt: Callable[[Json], str | None]) -> Answering:
    """Answers as the exact user of a task does; `spoilt` returns what it says in place of that."""
    exact = SHOP.user(task)

    def answering(body: Json) -> Json:
        line = spoilt(body)
        if line is not None:
            return said(line)
        turned = [
            message.model_copy(
                update={"role": "user" if message.role == "assistant" else "assistant"}
            )
            for message in messages_of(body)[1:]
            if not message.text.startswith("(The agent is there")
        ]
        return on_the_wire(exact.reply(turned))

    return answering


def test_a_rollout_whose_user_erred_is_played_again_and_counts_for_nothing(
    app: App, engine: Live
) -> None:
    def spoil(body: Json) -> str | None:
        is_first = len(body["messages"]) == 2
        return "My number is 4711-0815." if is_first and body["seed"] % 3 else None

    with ModelServer(answer_as_user(EASY, spoil)) as server:
        user = EndpointUser(url=server.url, model="customer")
        assert prober(app, engine.url, user=user)(EASY) == SAMPLES
    played = recorded(app)
    assert {(one.simulator, one.success) for one in played} == {("customer", True)}
    assert len(played) == SAMPLES
    trials = {one.trial for one in played}
    assert not trials <= set(range(SAMPLES)), "another trial stands for one whose user erred"
    app.settle()
    assert prober(app, "http://127.0.0.1:9", user=user)(EASY) == SAMPLES, "and none is played again"


def test_rollouts_of_another_user_are_not_read_as_those_of_this_one(app: App, engine: Live) -> None:
    prober(app, engine.url)(EASY)
    with ModelServer(answer_as_user(EASY, lambda _: None)) as server:
        users = [EndpointUser(url=server.url, model="customer", candidates=n) for n in (1, 2)]
        for user in users:
            app.settle()
            prober(app, engine.url, user=user)(EASY)
    counts = Counter(one.simulator for one in recorded(app))
    assert counts == dict.fromkeys(("scripted", "customer", "customer (best of 2)"), SAMPLES)


def test_a_task_is_rejected_where_the_tokens_of_the_users_are_spent(app: App, engine: Live) -> None:
    with ModelServer(answer_as_user(EASY, lambda _: None)) as server:
        user = EndpointUser(url=server.url, model="customer", max_tokens=64, budget=20_000)
        probing = prober(app, engine.url, ProbeBudget(20_000, minutes=240), user=user)
        assert probing(EASY) == SAMPLES
        count = len(server.requests)
        with pytest.raises(CheckFailure, match=r"models.user.max_tokens is 20,000; raise it"):
            probing(HARD)
        assert len(server.requests) == count


def test_a_task_is_rejected_where_the_minutes_of_the_users_are_over(app: App, engine: Live) -> None:
    over = threading.Event()

    def wait(body: Json) -> Json:
        over.wait(30)
        return said("Well?")

    with ModelServer(wait) as server:
        user = EndpointUser(url=server.url, model="customer")
        probing = prober(app, engine.url, ProbeBudget(10**9, minutes=0.02), user=user)
        for task in (EASY, HARD):
            with pytest.raises(CheckFailure, match=r"took 0.02 minutes .* models.user.minutes"):
                probing(task)
        over.set()
    assert len(server.requests) <= SAMPLES, "the second task was not begun"
    assert recorded(app) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "the user's model: the answer is no message: it is empty"),
        ("Agent: Done.", "the user's model: no line could be used in 3 rounds: it speaks for"),
    ],
)
def test_a_task_whose_user_errs_again_and_again_is_rejected_with_the_reason(
    app: App, engine: Live, line: str, reason: str
) -> None:
    with ModelServer(answer_as_user(EASY, lambda _: line)) as server:
        user = EndpointUser(url=server.url, model="customer")
        probing = prober(app, engine.url, user=user)
        with pytest.raises(CheckFailure) as failed:
            probing(EASY)
    assert str(failed.value).startswith(
        "the users that customer played erred in 3 tries of 8 of 8 rollouts; 0 of the others "
        f"passed: {reason}"
    )
    assert recorded(app) == []


def test_a_rollout_is_played_again_where_the_environments_own_user_erred(
    app: App, engine: Live
) -> None:
    class Faulty(FaultyShop):
        rate = 0.5
        users_err = True

    Prober(app, Faulty(), probed(engine.url))(EASY)
    played = recorded(app)
    assert len(played) == SAMPLES
    assert not {one.trial for one in played} <= set(range(SAMPLES))
    assert {one.simulator for one in played} == {"shop itself"}

    class Hopeless(Faulty):
        rate = 1.0

    probing = Prober(app, Hopeless(), probed(engine.url, cycle="cycle-2"))
    with pytest.raises(CheckFailure, match="the users that shop itself played erred in 3 tries"):
        probing(EASY)


@pytest.mark.long
def test_an_adapter_of_the_engine_plays_the_user(app: App, engine: Live, tmp_path: Path) -> None:
    folder = Maker(CHECKPOINT).write(tmp_path / "stranger", 0.3)
    user = AdapterUser(adapter="stranger", folder=str(folder), sha256="0" * 64, max_tokens=8)
    with pytest.raises(CannotSample, match="stranger"):
        prober(app, engine.url, user=user)(EASY)
    load = {"lora_name": "stranger", "lora_path": str(folder)}
    httpx2.post(f"{engine.url}/v1/load_lora_adapter", json=load).raise_for_status()
    with pytest.raises(CheckFailure, match="the users that stranger played erred in 3 tries of 8"):
        prober(app, engine.url, user=user)(EASY)
