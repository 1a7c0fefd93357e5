"""Telecom's generated tasks: solvable, not solved by accident, the same every time, and solo."""

from pathlib import Path

import pytest

from envs.agents import Agent, NullAgent
from envs.episode import Episode, play
from envs.grading import Grade, grade
from envs.task import TaskDefinition
from envs.tau2.gold import play_gold
from envs.telecom.environment import Telecom
from envs.telecom.kinds import KINDS
from events.messages import Message, executed_calls

TELECOM = Telecom()


def played(task: TaskDefinition, agent: Agent) -> tuple[Episode, Grade]:
    """A whole episode with the user who acts, and its grade."""
    episode = play(Episode(TELECOM, task), agent, TELECOM.user(task))
    return episode, grade(TELECOM, task, episode.messages, episode.termination)


@pytest.mark.parametrize("capability", KINDS)
def test_an_agent_alone_solves_every_kind_with_the_tools_of_both_sides(capability: str) -> None:
    for seed in range(6):
        task = TELECOM.task(f"telecom/{capability}/{seed}/solo")
        episode, verdict = played(task, TELECOM.oracle(task))
        assert (verdict.reward, episode.termination) == (1, "agent_stop"), (task.id, verdict)
        assert {item.requestor for item in executed_calls(episode.messages)} == {"assistant"}
        assert task.ticket is not None
        assert task.ticket in TELECOM.policy(task)


def test_a_step_that_the_user_leaves_out_leaves_the_task_undone() -> None:
    class Idle:
        """A user who agrees to everything and does nothing."""

        def reply(self, messages: list[Message]) -> Message:
            """A yes, then a goodbye."""
            done = len(messages) > 12
            return Message(role="user", content="Yes. ###STOP###" if done else "Yes, I did.")

    task = TELECOM.generate("suspended_line", 3)
    episode = play(Episode(TELECOM, task), TELECOM.oracle(task), Idle())  # type: ignore[arg-type]
    verdict = grade(TELECOM, task, episode.messages, episode.termination)
    assert verdict.reward == 0
    assert verdict.parts["ENV_ASSERTION"] == 0


@pytest.mark.benchmarks
@pytest.mark.parametrize(("split", "tasks"), [("base", 114), ("small", 20), ("test", 40)])
@pytest.mark.parametrize("solo", [False, True])
def test_the_gold_of_every_real_task_is_worth_one(
    benchmarks: Path, split: str, tasks: int, solo: bool
) -> None:
    report = play_gold(Telecom(benchmarks), split, solo=solo)
    assert (report.tasks, report.reward_one) == (tasks, tasks)
    assert (report.failed, report.unevaluated) == ([], {})


@pytest.mark.benchmarks
def test_doing_nothing_solves_no_real_task(benchmarks: Path) -> None:
    telecom = Telecom(benchmarks)
    for task in [*telecom.tasks("base"), *telecom.tasks("small")]:
        episode = play(Episode(telecom, task), NullAgent(), telecom.user(task))
        assert grade(telecom, task, episode.messages, episode.termination).reward == 0
        assert telecom.task(task.id) == task


def test_two_gigabytes_are_two_however_they_are_written() -> None:
    seeds = (
        seed
        for seed in range(50)
        if TELECOM.generate("data_used_up", seed).criteria.gold_actions
        and any(
            action.arguments.get("gb_amount") == 2.0
            for action in TELECOM.generate("data_used_up", seed).criteria.gold_actions or ()
        )
    )
    task = TELECOM.generate("data_used_up", next(seeds))
    episode, verdict = played(task, TELECOM.oracle(task))
    assert verdict.reward == 1
    as_integer = [
        message.model_copy(
            update={
                "tool_calls": tuple(
                    call.model_copy(update={"arguments": {**call.arguments, "gb_amount": 2}})
                    if isinstance(call.arguments, dict) and "gb_amount" in call.arguments
                    else call
                    for call in message.tool_calls
                )
            }
        )
        for message in episode.messages
    ]
    assert grade(TELECOM, task, as_integer, episode.termination).reward == 1
