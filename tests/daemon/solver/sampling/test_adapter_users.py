"""Users that an adapter plays in the agent's engine: its lines are read, and never trained on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import WEIGHTS, BadAdapter, verify
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.batch import Row, pad
from daemon.solver.job import run
from daemon.solver.policy import score
from daemon.solver.sampling.adapter_users import load_users
from daemon.solver.sampling.local import Attempt, InProcess, Rollout
from daemon.solver.telemetry.progress import Progress
from daemon.solver.trajectory import Trajectory, Turn, sequences, untrainable
from envs.episode import Episode, Termination, hide_calls, play
from envs.shop.environment import Shop
from envs.simulator import build_user_view
from envs.task import TaskDefinition
from envs.tools import Toolset, read
from envs.users import User
from events.jobs import AdapterUser, JobSpec, ModelUser
from events.messages import Message, ToolCall, executed_calls
from ops.random_adapters import Maker
from tests.daemon.engine.conftest import Live, listening

USER = AdapterUser(adapter="customer-1", folder="/adapters/customer-1", sha256="0" * 64)


class PhoneTools(Toolset):
    """What a user of `PhoneShop` can do."""

    @read
    def look(self) -> str:
        """Look at the order on the phone."""
        return "It is open."


class LookingUser:
    """The shop's user, who looks at the phone before its first line."""

    def __init__(self, user: User) -> None:
        self.user = user

    def reply(self, messages: Sequence[Message]) -> Message:
        if not messages:
            return Message(role="user", tool_calls=(ToolCall(name="look", id="u0"),))
        spoken = [m for m in messages if m.role != "tool" and not m.tool_calls]
        return self.user.reply(spoken)


class PhoneShop(Shop):
    """A shop whose user has a tool."""

    user_toolset = PhoneTools

    def user(self, task: TaskDefinition) -> User:
        return LookingUser(super().user(task))


SHOP = PhoneShop()
TASK = SHOP.generate("cancel", 0)


def show_user(chat: Chat) -> Trajectory:
    """The exact user's part of the oracle's dialogue, as a trained user reads and writes it."""
    episode = play(Episode(SHOP, TASK), SHOP.oracle(TASK), SHOP.user(TASK))
    turns = []
    for place, message in enumerate(episode.messages):
        if message.role == "user":
            before = hide_calls(episode.messages[:place], of="assistant")
            asked = build_user_view(TASK.scenario.text(), before, acts=True, trained=True)
            written = message.model_copy(update={"role": "assistant"})
            ids = chat.answer([*asked, written])
            turns.append(Turn(chat.prompt(asked), ids, (0.0,) * len(ids)))
    return Trajectory("r", "g", TASK.id, "user", tuple(turns), True, 1.0)


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(CHECKPOINT)


@pytest.fixture(scope="module")
def customer(chat: Chat) -> Policy:
    """The reference policy, taught to play the user of one task."""
    torch.set_num_threads(1)
    parts = sequences(show_user(chat))
    batch = pad([Row(part, 1.0, part.tokens) for part in parts])
    model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        loss = -(score(model, batch).logp * batch.mask).sum() / batch.mask.sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if loss.item() < 0.01:
            break
    return Policy.of(model, "customer-1")


def attempts(count: int, user: AdapterUser | None, task: TaskDefinition = TASK) -> list[Attempt]:
    return [Attempt(task, "g", seed, f"r{seed}", user=user) for seed in range(count)]


def play_attempts(
    chat: Chat, customer: Policy, wanted: Sequence[Attempt], **options: Any
) -> list[Rollout]:
    length = options.pop("length", 512)
    base = Policy.load(CHECKPOINT, "base")
    users = {user: customer for a in wanted if isinstance(user := a.user, AdapterUser)}
    player = InProcess(
        Engine(base, 8, length), chat, max_tokens=64, users=users, episodes=4, **options
    )
    return list(player.play(SHOP, wanted, base))


def test_a_user_acts_and_speaks_and_nothing_of_it_counts_as_the_agents(
    chat: Chat, customer: Policy
) -> None:
    (rollout,) = play_attempts(chat, customer, attempts(1, USER), temperature=1e-6)
    messages, turns = rollout.episode.messages, rollout.trajectory.turns
    assert rollout.episode.termination is Termination.USER_STOP
    assert rollout.trajectory.success is rollout.grade.success is True
    assert ("look", "user") in [(c.call.name, c.requestor) for c in executed_calls(messages)]
    own = [message for message in messages if message.role == "assistant"]
    assert [chat.message(turn.completion_ids).text for turn in turns] == [m.text for m in own]
    (row,) = sequences(rollout.trajectory)
    assert row.tokens == sum(len(turn.completion_ids) for turn in turns)
    spoken = [m.text for m in messages if m.role == "user" and m.text]
    assert len(spoken) == 3
    assert all(line in chat.text(turns[-1].prompt_ids) for line in spoken[:2])
    assert "It is open." not in chat.text(turns[-1].prompt_ids)
    assert rollout.user_tokens > len(spoken)
    assert rollout.to_attempt(0).user_usage.completion_tokens == rollout.user_tokens


@pytest.mark.parametrize("candidates", [1, 2])
def test_the_same_attempts_give_the_same_rollouts(
    chat: Chat, customer: Policy, candidates: int
) -> None:
    user = USER.model_copy(update={"candidates": candidates})
    first, second = (
        [rollout.trajectory for rollout in play_attempts(chat, customer, attempts(4, user))]
        for _ in range(2)
    )
    assert first == second
    # Of two lines it names none, so its likeliest one counts.
    assert len({item.turns for item in first}) == 1


def test_users_of_both_kinds_play_in_one_batch(chat: Chat, customer: Policy) -> None:
    mixed = [replace(a, user=USER if a.seed % 2 else None) for a in attempts(4, None)]
    rollouts = play_attempts(chat, customer, mixed, temperature=1e-6)
    assert {r.attempt.rollout: r.grade.success for r in rollouts} == dict.fromkeys(
        ("r0", "r1", "r2", "r3"), True
    )
    assert all((r.user_tokens > 0) == (r.attempt.user is not None) for r in rollouts)


@pytest.mark.parametrize(
    ("changes", "length", "reason"),
    [
        ({"max_tokens": 2}, 512, "the user's model: no line could be used in 3 rounds: it never"),
        ({}, 60, "the user's model: This model's maximum context length is 60 tokens"),
    ],
)
def test_a_user_that_never_stops_or_has_no_room_has_no_verdict(
    chat: Chat, customer: Policy, changes: dict[str, Any], length: int, reason: str
) -> None:
    user = USER.model_copy(update=changes)
    (rollout,) = play_attempts(chat, customer, attempts(1, user), length=length)
    assert rollout.episode.termination is Termination.USER_ERROR
    assert rollout.episode.reason.startswith(reason)
    assert (rollout.verdict, rollout.trajectory.success, rollout.trajectory.reward) == (None,) * 3
    assert rollout.trajectory.user_fault == rollout.episode.reason
    assert untrainable(rollout.trajectory, chat.ends) == "its user erred"
    assert rollout.to_attempt(0).grade is None


def test_a_user_that_calls_a_tool_and_has_none_has_no_verdict(chat: Chat, customer: Policy) -> None:
    base = Policy.load(CHECKPOINT, "base")
    player = InProcess(Engine(base, 8, 512), chat, max_tokens=64, users={USER: customer})
    (rollout,) = player.play(Shop(), attempts(1, USER), base)
    assert rollout.episode.termination is Termination.USER_ERROR
    assert "no line could be used in 3 rounds: it " in rollout.episode.reason


def test_what_a_user_of_a_persons_task_said_is_not_quoted(chat: Chat, customer: Policy) -> None:
    task = TASK.model_copy(update={"salt": "s"})
    user = USER.model_copy(update={"max_tokens": 2})
    (rollout,) = play_attempts(chat, customer, attempts(1, user, task))
    assert rollout.trajectory.user_fault == "the user erred"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> AdapterUser:
    """An adapter of random weights, which says nothing that a user would."""
    folder = Maker(CHECKPOINT).write(tmp_path_factory.mktemp("made") / "stranger", 0.3)
    return AdapterUser(
        adapter="stranger-1",
        folder=str(folder),
        sha256=verify(folder).files[WEIGHTS],
        max_tokens=24,
    )


def build_spec(user: ModelUser, **source: Any) -> JobSpec:
    source = source or {"kind": "in_process", "slots": 4, "length": 512}
    return JobSpec.model_validate(
        {
            "job": "j", "base": "reference", "checkpoint": str(CHECKPOINT), "environment": "shop",
            "pools": [{"name": "p", "tasks": ["shop/cancel/1", "shop/cancel/2"], "user": user}],
            "sampler": {"groups": 2, "size": 2, "rollouts": 8, "max_tokens": 48,
                        "source": source},
            "probe": {"groups": 2}, "threads": 1,
        }
    )  # fmt: skip


def test_a_job_counts_the_faults_of_its_users_and_learns_nothing_from_them(
    tmp_path: Path, stranger: AdapterUser
) -> None:
    updates: list[Progress] = []
    outcome = run(build_spec(stranger), tmp_path, updates.append)
    assert [update.user_faults for update in updates] == [4, 4]
    assert outcome.outcome == "failed"
    assert "8 cannot be trained on, 8 of them because: its user erred" in str(outcome.reason)


def test_a_job_refuses_an_adapter_that_is_not_the_one_of_its_user(stranger: AdapterUser) -> None:
    other = stranger.model_copy(update={"sha256": "1" * 64})
    with pytest.raises(BadAdapter, match="is not what was produced"):
        load_users(build_spec(other))


@pytest.fixture(scope="module")
def engine() -> Iterator[Live]:
    with listening(Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT), slots=16) as live:
        yield live


def list_models(url: str) -> list[str]:
    return [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]]


@pytest.mark.long
def test_a_server_plays_agent_and_user_as_two_adapters(
    tmp_path: Path, stranger: AdapterUser, engine: Live
) -> None:
    spec = build_spec(stranger, kind="endpoint", url=f"{engine.url}/v1", model="reference")
    updates: list[Progress] = []
    served: list[list[str]] = []

    def note(progress: Progress) -> None:
        updates.append(progress)
        served.append(list_models(engine.url))

    outcome = run(spec, tmp_path / "first", note)
    assert [update.user_faults for update in updates] == [4, 4]
    assert "8 of them because: its user erred" in str(outcome.reason)
    assert served == [["reference", "j-plays-stranger-1"]] * 2
    assert list_models(engine.url) == ["reference"], "the user's adapter was unloaded"
    # What a killed job left there is no obstacle.
    load = {"lora_name": "j-plays-stranger-1", "lora_path": stranger.folder}
    httpx2.post(f"{engine.url}/v1/load_lora_adapter", json=load).raise_for_status()
    again = run(spec, tmp_path / "second")
    assert again.outcome == outcome.outcome
    assert list_models(engine.url) == ["reference"]


def test_a_server_gets_no_adapter_that_is_not_the_one_of_its_user(
    tmp_path: Path, stranger: AdapterUser, engine: Live
) -> None:
    other = stranger.model_copy(update={"sha256": "1" * 64})
    spec = build_spec(other, kind="endpoint", url=f"{engine.url}/v1", model="reference")
    outcome = run(spec, tmp_path)
    assert "is not what was produced" in str(outcome.reason)
    assert list_models(engine.url) == ["reference"]
