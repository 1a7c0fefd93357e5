"""Whether the agent had failed already when something happened (pure).

    is_lost(environment, task, messages[:place])     what follows is not why it failed

An agent that fails first and has its user err afterwards would be excused for what it did itself.
Two things are not undone: a violation of the policy, and a write that is none of the gold actions
and leaves a value that is neither the first state's nor the gold one's.

Not covered: a wrong write that the agent takes back, and what is only told wrong.
"""

from collections.abc import Sequence

from envs.comparison.arrangement import arrange_calls, arrange_task
from envs.environment import Environment
from envs.grading import compare_states, replay, replay_gold
from envs.task import TaskDefinition
from events.messages import ExecutedCall, Message, executed_calls


def is_lost(environment: Environment, task: TaskDefinition, messages: Sequence[Message]) -> bool:
    """Whether no success can follow a transcript (without system prompt), by what the agent did."""
    if not any(message.role == "assistant" for message in messages):
        return False
    basis = task.criteria.reward_basis
    return ("POLICY" in basis and _has_violation(environment, task, messages)) or (
        "DB" in basis and _has_wrong_write(environment, task, messages)
    )


def _has_violation(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> bool:
    """Whether the agent broke the policy; what is missing from the first message on is none yet."""
    open_from_start = set(environment.violations(task, messages[:1]))
    return any(item not in open_from_start for item in environment.violations(task, messages))


def _has_wrong_write(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> bool:
    task = arrange_task(environment, task)
    executed = arrange_calls(environment, task, executed_calls(messages))
    if task.criteria.gold_actions is None or all(
        _is_gold(task, item) for item in executed if _writes(environment, item)
    ):
        return False
    actual = replay(environment, task, executed)
    start, expected = environment.reset(task), replay_gold(environment, task)
    changed = {item.path for item in compare_states(environment, task, start, actual)}
    return any(item.path in changed for item in compare_states(environment, task, expected, actual))


def _writes(environment: Environment, item: ExecutedCall) -> bool:
    """Whether a call is one of the agent's in this episode, and its tool changes the state."""
    return item.sampled and item.requestor == "assistant" and item.call.name in environment.writes


def _is_gold(task: TaskDefinition, item: ExecutedCall) -> bool:
    return any(
        (action.name, action.arguments) == (item.call.name, item.call.arguments)
        for action in task.criteria.gold_actions or ()
    )
