"""A live session that names its task is worth what the same transcript is worth in simulation."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from consumers.diagnosis.labels import label_rollout
from daemon.config.settings import Environments, Privacy, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act
from daemon.proposer.additions import Addition
from daemon.proposer.task_buffer import Target, TaskWriter
from daemon.sessions import transcript
from daemon.sessions.closing import close_sessions
from daemon.sessions.verdict import mark_prefix
from envs.airline.environment import Airline
from envs.endpoint import Usage
from envs.environment import Environment
from envs.episode import Episode, hide_calls
from envs.episode import play as play_locally
from envs.evaluation import Setup, make_environment_user, play
from envs.players import LocalPlayer
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.shop.oracle import ShopOracle
from envs.task import write_body
from envs.telecom.environment import Telecom
from events.messages import Message, ToolCall
from events.rollouts import RolloutContent, RolloutEnded
from producers.simulation import Provenance, build_rollout_event
from tests.daemon.sessions.recorded_session import START, record_session
from tests.envs import clinic
from tests.envs.clinic import Clinic

PROVENANCE = Provenance(alias="agent", base="base", policy="base", purpose="evaluate")
QUESTION = Message(role="assistant", content="Shall I do it (yes/no)?")
CLOSING = Message(role="assistant", content="Your request is complete.")
NONSENSE = (
    Message(role="assistant", tool_calls=(ToolCall(name="no_such_tool", arguments={}),)),
    Message(role="assistant", tool_calls=(ToolCall(name="get_user_details", arguments="{"),)),
)
TWICE = (
    Message(
        role="assistant",
        tool_calls=(ToolCall(name="get_order_details", arguments={"order_id": "#W0"}),),
    ),
) * 3


class Recital(LocalPlayer):
    """An agent that says its messages one after the other, each of `tokens` tokens."""

    def __init__(self, messages: Sequence[Message], tokens: int | None) -> None:
        self.messages, self.tokens, self.done = messages, tokens, 0

    @property
    def usage(self) -> Usage:  # type: ignore[override]
        total = None if self.tokens is None else self.done * self.tokens
        return Usage(requests=self.done, completion_tokens=total)

    async def reply(self, messages: Sequence[Message]) -> Message:
        self.done += 1
        return self.messages[min(self.done, len(self.messages)) - 1]


def gold_calls(environment: Environment, task_id: str) -> list[Message]:
    """The perfect agent's calls, each in a message of its own, and a question before each write,
    if there is a user to ask."""
    task = environment.task(task_id)
    messages: list[Message] = []
    for action in task.criteria.gold_actions or ():
        call = ToolCall(name=action.name, arguments=action.arguments)
        asks = action.name in environment.writes and not task.solo
        messages += [QUESTION] if asks else []
        messages.append(Message(role="assistant", tool_calls=(call,)))
    return messages


def simulate(
    environment: Environment, task_id: str, says: Sequence[Message], tokens: int | None
) -> RolloutEnded:
    """The event of a simulated rollout in which the agent says this."""
    setup = Setup(
        environment,
        agent=lambda task, seed: Recital(says, tokens),
        user=make_environment_user(environment),
    )
    attempt = asyncio.run(play(setup, environment.task(task_id), 0))
    return build_rollout_event(attempt, environment, PROVENANCE, "simulated")


def replay_live(
    home: Path, environment: Environment, simulated: RolloutEnded, tokens: int | None
) -> RolloutEnded:
    """The event of a live session with the transcript of a simulated rollout."""
    assert simulated.content is not None
    assert simulated.task is not None
    messages = simulated.content.messages
    spoken = [m for m in messages if m.role == "assistant" and m.sampled is not False]
    paths = (Path(clinic.__file__),) if environment.name == "clinic" else ()
    settings = Settings(home=home, environments=Environments(paths=paths))
    with App(settings) as app:
        policy = environment.policy(environment.task(simulated.task.id))
        app.append(record_session(messages, simulated.task.id, policy, [tokens] * len(spoken)))
        closed = close_sessions(app, START + timedelta(hours=1))
        assert (closed.rollouts, closed.failures, closed.troubles) == (1, (), ())
        with app.reading() as connection:
            (name,) = connection.exec_driver_sql("SELECT rollout FROM rollouts").scalars()
            found = transcript.find(connection, name)
        return transcript.read(found, app.log, app.bodies).data


def compare(home: Path, environment: Environment, task: str, says: Sequence[Message],
            tokens: int | None = 7) -> RolloutEnded:  # fmt: skip
    """The live event of a transcript, which has the verdict of the simulated one."""
    simulated = simulate(environment, task, says, tokens)
    live = replay_live(home, environment, simulated, tokens)
    assert live.success == simulated.success
    assert live.reward == simulated.reward
    assert live.reward_parts == simulated.reward_parts
    assert live.grader == simulated.grader
    assert live.tool_roles == simulated.tool_roles
    assert live.write_tools == simulated.write_tools
    ours, theirs = label_rollout(live).labels, label_rollout(simulated).labels
    assert (ours.category, ours.categories, ours.pivot) == (
        theirs.category, theirs.categories, theirs.pivot,
    )  # fmt: skip
    return live


def test_a_write_before_authentication_breaks_the_policy_of_a_live_session(home: Path) -> None:
    retail, task = Retail(), "retail/modify_address/3"
    find, *others = gold_calls(retail, task)
    live = compare(home, retail, task, [*others, find, CLOSING])
    assert (live.success, live.reward) == (False, -0.5)
    assert (live.reward_parts["DB"], live.reward_parts["POLICY"]) == (1.0, 0.0)
    assert live.reward_parts["penalty_authentication"] == -0.5


def test_a_clean_success_has_the_whole_reward_and_no_category(home: Path) -> None:
    retail, task = Retail(), "retail/modify_address/3"
    live = compare(home, retail, task, [*gold_calls(retail, task), CLOSING])
    assert (live.success, live.reward) == (True, 1.0)
    assert label_rollout(live).labels.category is None


def test_malformed_and_repeated_calls_cost_a_live_session_what_they_cost_in_simulation(
    home: Path,
) -> None:
    retail, task = Retail(), "retail/cancel/1"
    find, *others = gold_calls(retail, task)
    live = compare(home, retail, task, [find, *NONSENSE, *TWICE, *others, CLOSING])
    assert live.success is True
    assert live.reward_parts["penalty_format"] == -0.1
    assert live.reward_parts["penalty_repetition"] == -0.04
    assert live.reward == pytest.approx(0.86)


def test_a_rule_that_asks_whether_a_call_failed_judges_a_live_session_alike(home: Path) -> None:
    """Of shop, a failed look-up is no authentication, and a write after it breaks the policy."""
    shop, task = Shop(), "shop/cancel/1"
    _, look_up, _, write = gold_calls(shop, task)
    oracle = ShopOracle(shop.task(task), shop.writes)
    question = Message(role="assistant", content=oracle.question(oracle.actions[-1]))
    nobody = call("find_user", name="Nobody", zip="00000")
    done = Message(role="assistant", content=oracle.final_text())
    live = compare(home, shop, task, [nobody, look_up, question, write, done])
    assert (live.success, live.reward_parts["POLICY"]) == (False, 0.0)
    assert (live.reward_parts["DB"], live.reward_parts["COMMUNICATE"]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("environment", "task"),
    [(Shop(), "shop/cancel/1"), (Airline(), "airline/cancel/1"), (Retail(), "retail/cancel/1")],
    ids=["shop", "airline", "retail"],
)
def test_a_failure_has_the_same_category_live_and_simulated(
    home: Path, environment: Environment, task: str
) -> None:
    live = compare(home, environment, task, [*gold_calls(environment, task)[:1], CLOSING])
    assert live.success is False
    assert label_rollout(live).labels.category == "missing_write_action"


def oracle_texts(task_id: str) -> tuple[RolloutEnded, list[Message]]:
    """A simulated rollout of telecom's oracle, and what the oracle says in it."""
    telecom = Telecom()
    task = telecom.task(task_id)
    episode = play_locally(Episode(telecom, task), telecom.oracle(task), telecom.user(task))
    says = [m for m in episode.messages if m.role == "assistant" and m.sampled is not False]
    return simulate(telecom, task_id, says, 7), says


def test_a_session_whose_user_acts_is_graded_by_the_calls_that_the_client_sent(home: Path) -> None:
    task_id = "telecom/suspended_line/2"
    simulated, _ = oracle_texts(task_id)
    assert simulated.success is True
    assert simulated.content is not None
    ends = Message(role="assistant", content="Your request is complete.")
    whole = RolloutContent(messages=(*simulated.content.messages, ends))
    live = replay_live(home, Telecom(), simulated.model_copy(update={"content": whole}), 7)
    assert (live.success, live.reward_parts["ENV_ASSERTION"]) == (True, 1.0)


def test_a_session_whose_user_s_steps_are_not_to_be_seen_has_no_verdict(home: Path) -> None:
    simulated, _ = oracle_texts("telecom/no_service/1")
    assert simulated.content is not None
    seen = RolloutContent(messages=tuple(hide_calls(simulated.content.messages, of="user")))
    live = replay_live(home, Telecom(), simulated.model_copy(update={"content": seen}), 7)
    assert (live.success, live.reward) == (None, None)
    assert live.task is not None
    assert live.task.id == "telecom/no_service/1"


def test_a_session_of_an_agent_that_works_alone_is_graded_as_any(home: Path) -> None:
    telecom, task = Telecom(), "telecom/line_change/1/solo"
    assert compare(home, telecom, task, [*gold_calls(telecom, task), CLOSING]).success is True


@pytest.mark.parametrize(("tokens", "penalty"), [(4000, -0.1), (None, None)])
def test_the_length_is_shaped_where_the_engine_counted_its_tokens(
    home: Path, tokens: int | None, penalty: float | None
) -> None:
    retail, task = Retail(), "retail/cancel/1"
    live = compare(home, retail, task, [*gold_calls(retail, task), CLOSING], tokens=tokens)
    assert live.reward_parts["penalty_length"] == pytest.approx(penalty)
    assert live.reward == pytest.approx(1.0 + (penalty or 0.0))


def call(name: str, /, **arguments: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),))


RINGS = call("who_rings", birthday="1 May")
TAKES = call("slot_take", slot="8", patient="Rosa")


@pytest.mark.parametrize(
    ("says", "category"),
    [
        ([RINGS, TAKES, CLOSING], None),
        ([TAKES, RINGS, CLOSING], "policy_violation"),
        ([CLOSING], "user_id_failure"),
        ([RINGS, call("ring_doctor"), CLOSING], "over_cautious"),
        ([RINGS, call("slot_take", slot="9", patient="Rosa"), CLOSING], "wrong_item_selection"),
    ],
    ids=["clean", "before-authentication", "no-record", "transferred", "selection"],
)
def test_what_an_environment_of_ones_own_declares_is_what_diagnosis_asks(
    home: Path, says: list[Message], category: str | None
) -> None:
    live = compare(home, Clinic(), "clinic/slot/0", says)
    assert live.tool_roles == Clinic().catalog.roles
    assert label_rollout(live).labels.category == category


def test_a_sealed_session_is_labelled_by_what_its_environment_declares(home: Path) -> None:
    clinic_, task = Clinic(), "clinic/slot/0"
    simulated = simulate(clinic_, task, [RINGS, call("ring_doctor"), CLOSING], None)
    assert simulated.content is not None
    settings = Settings(
        home=home,
        environments=Environments(paths=(Path(clinic.__file__),)),
        privacy=Privacy(seal=True),
    )
    with App(settings) as app:
        key = app.keys.of("rosa")
        tokens = [None] * sum(m.role == "assistant" for m in simulated.content.messages)
        policy = clinic_.policy(clinic_.task(task))
        app.append(
            record_session(simulated.content.messages, task, policy, tokens, person="rosa", key=key)
        )
        assert close_sessions(app, START + timedelta(hours=1)).rollouts == 1
        with app.reading() as connection:
            rows = connection.exec_driver_sql("SELECT category, categories FROM rollouts").all()
            (name,) = connection.exec_driver_sql("SELECT rollout FROM rollouts").scalars()
            record = transcript.read(transcript.find(connection, name), app.log, app.bodies)
    assert record.sealed
    assert record.data.labels is not None
    assert [row.category for row in rows] == ["over_cautious"]


def test_a_live_session_on_a_task_by_content_is_graded_by_the_body_of_the_log(
    tmp_path: Path,
) -> None:
    shop = Shop()
    task = shop.generate("cancel", 7).name_by_content()
    shop.use_definitions({task.id: write_body(task.dump_body())}.get)
    says = [*gold_calls(shop, task.id), CLOSING]
    for name, brought in (("with", (task,)), ("without", ())):
        with App(Settings(home=tmp_path / name)) as app:
            writer = TaskWriter(app, Act("ada"), Target("agent", "base", None))
            writer.append([Addition("line 1", one, (), False) for one in brought])
        live = replay_live(tmp_path / name, shop, simulate(shop, task.id, says, 7), 7)
        assert live.task is not None
        assert live.task.id == task.id
        assert (live.success is not None) == bool(brought)


@pytest.mark.parametrize("greets", [False, True])
def test_a_live_session_is_not_blamed_for_the_prefix_of_its_task(home: Path, greets: bool) -> None:
    environment: Environment = Retail() if greets else Shop()
    whole = environment.generate("cancel", 7)
    episode = Episode(environment, whole)
    begin = len(episode.messages)
    for message in (environment.user(whole).reply([]), *NONSENSE, *TWICE):
        episode.receive(message)
    prefix = tuple(episode.messages[begin:])
    task = whole.model_copy(update={"prefix": prefix}).name_by_content()
    environment.use_definitions({task.id: write_body(task.dump_body())}.get)
    with App(Settings(home=home)) as app:
        writer = TaskWriter(app, Act("ada"), Target("agent", "base", None))
        writer.append([Addition("line 1", task, (), False)])
    simulated = simulate(environment, task.id, [*gold_calls(environment, task.id), CLOSING], 7)
    assert simulated.content is not None
    live = replay_live(home, environment, simulated, 7)
    assert (live.success, live.reward) == (simulated.success, simulated.reward)
    assert live.reward_parts == simulated.reward_parts
    assert label_rollout(live).labels == label_rollout(simulated).labels
    assert live.content is not None
    spoken = [message for message in live.content.messages if message.role != "system"]
    marks = [message.sampled is False for message in spoken[begin:]]
    assert marks == [True] * len(prefix) + [False] * (len(spoken) - begin - len(prefix))


def test_a_session_that_begins_otherwise_than_its_task_keeps_its_messages() -> None:
    shop = Shop()
    task = shop.generate("cancel", 7).model_copy(update={"prefix": (*NONSENSE, CLOSING)})
    messages = (Message(role="system", content="Serve."), *NONSENSE, TWICE[0])
    assert mark_prefix(task, messages) == messages
    assert mark_prefix(task, ()) == ()
