"""What a rollout is worth by the reward of its pool, and what of it is not judged."""

from dataclasses import replace
from typing import Any, Final

import pytest

from daemon.engine.chat import Chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.methods import REWARDS
from daemon.solver.reward import RolloutFacts, Worth
from daemon.solver.trajectory import Turn
from envs.shop.environment import Shop
from events.jobs import RewardKind
from events.messages import Message
from tests.daemon.solver.lessons import REFLECTION, write_lesson

TASK: Final = write_lesson("cancel", 1)
PASSED, FAILED = Worth(True, 0.96), Worth(False, -0.04)


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(CHECKPOINT)


def right() -> Message:
    """The message that the lesson expects, reflection included."""
    assert TASK.lesson is not None
    made = [{"name": call.name, "arguments": call.arguments} for call in TASK.lesson.calls]
    content = f"<reflect>{REFLECTION}</reflect>"
    return Message.model_validate({"role": "assistant", "content": content, "tool_calls": made})


def answer(chat: Chat, message: Message, **changes: Any) -> Turn:
    written = chat.answer([Message(role="user", content="Hello."), message])
    fields = {"completion_ids": written, "logprobs": (0.0,) * len(written), **changes}
    return Turn((1,), **fields)


def worth(
    chat: Chat, reward: RewardKind, verdict: Worth, turn: Turn | None, message: Message | None
) -> Worth:
    before = [m.model_copy(update={"sampled": False}) for m in TASK.prefix]
    after = [] if message is None else [message, Message(role="assistant", content="Done.")]
    turns = [] if turn is None else [turn]
    return REWARDS[reward].weigh(
        verdict, RolloutFacts(TASK, turns, [*before, *after], chat, "paper")
    )


def test_a_right_first_message_is_worth_one_and_half_beside_the_verdict(chat: Chat) -> None:
    message = right()
    turn = answer(chat, message)
    assert worth(chat, "verdict", FAILED, turn, message) == FAILED
    repair = worth(chat, "repair", FAILED, turn, message)
    assert repair.success
    assert repair.reward == repair.repair == pytest.approx(1.0, abs=0.05)
    both = worth(chat, "both", FAILED, turn, message)
    assert both == Worth(False, (repair.reward or 0) / 2, repair.reward)
    assert worth(chat, "both", PASSED, turn, message) == Worth(True, 0.96, repair.reward)


def test_a_penalty_is_of_the_verdict_alone(chat: Chat) -> None:
    message = right()
    both = worth(chat, "both", Worth(True, 0.3), answer(chat, message), message)
    assert both.success
    assert both.reward == pytest.approx(0.5, abs=0.025)


def test_a_wrong_first_message_repairs_little(chat: Chat) -> None:
    message = Message(role="assistant", content="Done.")
    repair = worth(chat, "repair", PASSED, answer(chat, message), message)
    assert repair.success is False
    assert repair.reward is not None
    assert repair.reward < 0.15


@pytest.mark.parametrize("reward", ["repair", "both"])
def test_what_is_not_known_is_not_judged(chat: Chat, reward: RewardKind) -> None:
    message, unknown = right(), Worth(None, None)
    bare = Turn((), (), ())
    assert worth(chat, reward, PASSED, bare, message) == unknown, "no tokens, no text"
    assert worth(chat, reward, FAILED, None, None) == unknown, "nothing was written"


def test_a_verdict_that_hangs_on_a_judge_leaves_the_repair_judged(chat: Chat) -> None:
    message, unknown = right(), Worth(None, None)
    turn = answer(chat, message)
    repair = worth(chat, "repair", unknown, turn, message)
    assert repair.success
    assert worth(chat, "both", unknown, turn, message) == Worth(None, None, repair.repair)


def test_an_answer_that_was_cut_off_repairs_nothing(chat: Chat) -> None:
    message = right()
    cut = answer(chat, message, truncated=True)
    assert worth(chat, "repair", FAILED, cut, None) == Worth(False, 0.0, 0.0)
    assert worth(chat, "both", FAILED, cut, None) == Worth(False, 0.0, 0.0)


def test_an_episode_ends_with_its_first_message_where_the_repair_alone_counts() -> None:
    shop = Shop()
    rewards: tuple[RewardKind, ...] = ("verdict", "both", "repair")
    limits = [REWARDS[reward].choose_limits(shop) for reward in rewards]
    assert limits == [shop.limits, shop.limits, replace(shop.limits, max_steps=1)]
