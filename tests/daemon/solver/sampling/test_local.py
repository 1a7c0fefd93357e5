"""Rollouts played in this process: exact tokens, whole episodes, the same again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.batch import Row, pad
from daemon.solver.journal import write_successes
from daemon.solver.policy import score
from daemon.solver.reference.demonstrations import vocabulary
from daemon.solver.sampling.local import Attempt, InProcess, Rollout
from daemon.solver.trajectory import sequences, untrainable
from daemon.solver.warm_start import reference
from envs.episode import Episode, Party, Termination, play
from envs.shop.environment import Shop
from envs.task import Lesson, TaskDefinition
from envs.tools import Toolset, read
from envs.users import User
from events.messages import Action, Message, ToolCall, executed_calls
from ops.reciting_model import HOSTILE_ANSWERS, reciting, with_token


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def attempts(count: int) -> list[Attempt]:
    shop = Shop()
    kinds = list(shop.capabilities)
    tasks = [shop.generate(kinds[n % len(kinds)], n) for n in range(count)]
    return [Attempt(task, task.id, n, f"r{n}") for n, task in enumerate(tasks)]


def played(wanted: Sequence[Attempt], slots: int = 8, longest: int = 64) -> list[Rollout]:
    policy = Policy.load(CHECKPOINT, "base")
    player = InProcess(Engine(policy, slots, 512), Chat(CHECKPOINT), max_tokens=longest)
    return list(player.play(Shop(), wanted, policy))


def test_every_attempt_becomes_one_rollout_with_a_verdict() -> None:
    wanted = attempts(30)
    found = played(wanted)
    assert sorted(r.trajectory.rollout for r in found) == sorted(a.rollout for a in wanted)
    for rollout in found:
        assert rollout.episode.termination is not None
        assert rollout.trajectory.success is rollout.grade.success
        assert rollout.trajectory.reward is not None
        assert rollout.trajectory.task == rollout.attempt.task.id
        assert rollout.trajectory.policy == "base"
        assert rollout.trajectory.malformed == rollout.episode.malformed


def test_a_lesson_that_nobody_can_fulfil_hurts_no_rollout_that_its_verdict_judges() -> None:
    (attempt,) = attempts(1)
    call = Action(name="cancel_order", arguments={"order_id": float("nan")})
    lesson = Lesson(operator="recorded", reflection="No.", calls=(call,), source="shop/cancel/0")
    task = attempt.task.model_copy(update={"lesson": lesson})
    plain, (rollout,) = played([attempt]), played([replace(attempt, task=task)])
    assert rollout.trajectory == plain[0].trajectory


def test_tokens_are_as_read_and_drawn() -> None:
    chat = Chat(CHECKPOINT)
    found = played(attempts(30))
    turns = 0
    for rollout in found:
        trajectory = rollout.trajectory
        assert untrainable(trajectory, chat.ends) is None
        episode = rollout.episode
        said = [m for m in episode.messages if m.role == "assistant"]
        whole = [turn for turn in trajectory.turns if not turn.truncated]
        assert [chat.message(turn.completion_ids).text for turn in whole] == [m.text for m in said]
        assert chat.prompt(episode.view(Party.AGENT)[:2]) == trajectory.turns[0].prompt_ids
        turns += len(trajectory.turns)
    assert turns > 3 * len(found)


def begun(count: int) -> list[Attempt]:
    """Attempts at tasks that begin after the oracle's first call and its result."""
    shop, prepared = Shop(), []
    for attempt in attempts(count):
        task = attempt.task
        episode = play(Episode(shop, task), shop.oracle(task), shop.user(task))
        prefix = tuple(episode.messages[:3])
        prepared.append(replace(attempt, task=task.model_copy(update={"prefix": prefix})))
    return prepared


def test_a_prefix_is_read_and_nothing_of_it_counts_as_written() -> None:
    chat = Chat(CHECKPOINT)
    found = played(begun(20))
    for rollout in found:
        trajectory, episode = rollout.trajectory, rollout.episode
        prefix = rollout.attempt.task.prefix
        (call,) = executed_calls(prefix)
        assert call.result is not None
        assert untrainable(trajectory, chat.ends) is None
        first = chat.prompt(Episode(Shop(), rollout.attempt.task).view(Party.AGENT))
        assert trajectory.turns[0].prompt_ids == first
        assert call.result.text in chat.text(first)
        (row,) = sequences(trajectory)
        assert row.tokens == sum(len(turn.completion_ids) for turn in trajectory.turns)
        assert not any(row.written[: len(first)])
        spoken = [m for m in episode.messages if m.role == "assistant" and m.sampled is not False]
        cut = trajectory.is_incomplete
        assert len(spoken) == len(trajectory.turns) - cut
    assert any(rollout.grade.success for rollout in found)
    assert any(len(rollout.trajectory.turns) > 2 for rollout in found)


def test_an_oracle_shows_what_follows_a_prefix() -> None:
    chat, shop = Chat(CHECKPOINT), Shop()
    for attempt in begun(10):
        shown = reference(shop, chat, attempt.task, "r")
        whole = reference(shop, chat, attempt.task.model_copy(update={"prefix": ()}), "r")
        assert shown.success
        assert shown.turns == whole.turns[1:]


def test_log_probabilities_are_the_learners() -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    parts = [part for rollout in played(attempts(12)) for part in sequences(rollout.trajectory)]
    padded = pad([Row(part, 1.0, part.tokens) for part in parts])
    with torch.no_grad():
        logp = score(model, padded).logp
    assert padded.mask.sum() > 100
    assert float(((logp - padded.sampler_logp) * padded.mask).abs().max()) < 1e-4


@pytest.mark.parametrize(
    "answer",
    [
        *HOSTILE_ANSWERS[:3],
        *(pytest.param(answer, marks=pytest.mark.long) for answer in HOSTILE_ANSWERS[3:]),
    ],
)
def test_an_answer_ends_no_episode_but_its_own(answer: str, tmp_path: Path) -> None:
    tokens = with_token(vocabulary(Shop()), answer)
    checkpoint = reciting(tmp_path, tokens, answer, max_position_embeddings=512)
    policy = Policy.load(checkpoint, "base")
    player = InProcess(Engine(policy, 4, 512), Chat(checkpoint), max_tokens=16)
    for rollout in player.play(Shop(), attempts(2), policy):
        assert rollout.episode.termination is not None
        for message in rollout.episode.messages:
            assert Message.model_validate_json(message.model_dump_json()) == message
        assert write_successes([rollout.trajectory])


def test_an_answer_that_a_limit_cuts_off_ends_its_episode() -> None:
    cut = [r for r in played(attempts(20), longest=12) if r.trajectory.is_incomplete]
    assert 0 < len(cut) < 20
    for rollout in cut:
        assert rollout.episode.termination is Termination.AGENT_ERROR
        assert rollout.episode.reason == "an answer was cut off at 12 tokens"
        assert not rollout.grade.success
        assert len(rollout.trajectory.turns[-1].completion_ids) == 12


def test_the_same_attempts_give_the_same_rollouts() -> None:
    first, second = (
        {r.trajectory.rollout: r.trajectory for r in played(attempts(20))} for _ in range(2)
    )
    assert first == second


def test_a_rollout_does_not_depend_on_who_else_is_played() -> None:
    """But for rounding, which a draw seldom sees."""
    wanted = attempts(12)
    together = {r.trajectory.rollout: r.trajectory.turns for r in played(wanted)}
    alike = 0
    for attempt in wanted:
        (alone,) = played([attempt], slots=1)
        alike += [t.completion_ids for t in alone.trajectory.turns] == [
            t.completion_ids for t in together[attempt.rollout]
        ]
    assert alike >= len(wanted) - 1


class PocketTools(Toolset):
    """What a user of `ActingShop` can do."""

    @read
    def look(self) -> str:
        """Look into a pocket."""
        return "empty"


class LookingUser:
    """The shop's user, who looks into a pocket twice before each line."""

    def __init__(self, user: User) -> None:
        self.user = user

    def reply(self, messages: Sequence[Message]) -> Message:
        spoken = [m for m in messages if m.role != "tool" and not m.tool_calls]
        looks = sum(bool(message.tool_calls) for message in messages)
        lines = sum(message.role == "user" for message in spoken)
        if looks < 2 * (lines + 1):
            return Message(role="user", tool_calls=(ToolCall(name="look", id=f"u{looks}"),))
        return self.user.reply(spoken)


class ActingShop(Shop):
    """A shop whose user has tools."""

    user_toolset = PocketTools

    def user(self, task: TaskDefinition) -> User:
        return LookingUser(super().user(task))


def test_a_user_who_acts_before_it_speaks_keeps_no_episode_waiting() -> None:
    policy = Policy.load(CHECKPOINT, "base")
    player = InProcess(Engine(policy, 4, 512), Chat(CHECKPOINT), max_tokens=64)
    found = list(player.play(ActingShop(), attempts(8), policy))
    assert len(found) == 8
    for rollout in found:
        executed = executed_calls(rollout.episode.messages)
        assert "user" in {item.requestor for item in executed}
        assert "empty" not in [m.text for m in rollout.episode.view(Party.AGENT)]


def test_nothing_to_play_is_nothing() -> None:
    assert played([]) == []
