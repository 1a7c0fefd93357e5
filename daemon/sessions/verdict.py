"""Verdict on a live session that names a task, by replay (role `work`).

A session gets the shaped reward, and its parts, that the same transcript would get in simulation.
Its end counts as regular, since nothing tells why a client stopped. The penalty for length is null
if an engine did not report tokens. The log may lack a user's tool calls, so a failure without one
of the user's gold actions has no verdict. Messages of the task's prefix are marked as not sampled:
the client sent them. The task's name comes from a client: it selects an environment and never opens
a file.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daemon.core.task_definitions import with_definitions
from envs.catalog import catalog
from envs.environment import Environment, UnknownTask
from envs.episode import hide_calls
from envs.evaluation import assess_recorded
from envs.grading import find_absent_actions, get_version
from envs.registry import EnvironmentBroken, UnknownEnvironment, is_away, open_environment
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.messages import Message, executed_calls
from events.rollouts import NOBODY, RolloutContent, RolloutEnded, Task
from producers.simulation import list_verdicts, name_parts

if TYPE_CHECKING:
    from daemon.core.app import App


class EnvironmentsAway(KintsugiError):
    """A file or folder named in the settings is missing now."""


def add_verdict(app: "App", data: RolloutEnded, task_id: str, tokens: int | None) -> RolloutEnded:
    """Add the task to a rollout, and the verdict of a replay if its environment is known here.
    `tokens` are the model's, None if unknown. Raise EnvironmentsAway, EnvironmentBroken."""
    try:
        # A session without an engine's answer tells nothing about the agent.
        definition = None if data.base == NOBODY else open_task(app, task_id)
        if definition is None:
            return data.model_copy(update={"task": Task(id=task_id)})
        return _grade(data, *definition, tokens)
    except SystemExit as error:
        raise EnvironmentBroken(
            f"the environment of task {task_id} ends the program that grades it; mend its code"
        ) from error


def _grade(
    data: RolloutEnded, environment: Environment, task: TaskDefinition, tokens: int | None
) -> RolloutEnded:
    if data.content is not None and task.prefix:
        marked = RolloutContent(messages=mark_prefix(task, data.content.messages))
        data = data.model_copy(update={"content": marked})
    messages = data.content.messages if data.content else ()
    spoken = [message for message in messages if message.role not in ("system", "developer")]
    assessment = assess_recorded(environment, task, spoken, tokens)
    grading, reward = assessment.grade, assessment.reward
    if grading.success is False and _lacks_user_calls(environment, task, spoken):
        return data.model_copy(update={"task": task.record()})
    declared = catalog(environment.name) is not None
    return data.model_copy(
        update={
            "task": task.record(),
            "success": grading.success,
            "reward": None if reward is None else reward.total,
            "reward_parts": name_parts(grading, assessment.penalties),
            "grader": f"{environment.name}/{get_version(task)}",
            "verdicts": list_verdicts(assessment.check),
            "write_tools": None if declared else tuple(sorted(environment.writes)),
            "tool_roles": environment.recorded_tool_roles,
        }
    )


def mark_prefix(task: TaskDefinition, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return a transcript in which the task's prefix, if it begins so, is marked as not sampled.
    System prompts and a greeting may precede it, and calls of the user may be missing. Only roles,
    texts and names of tools are compared, since clients rewrite calls and ids."""
    places = [
        place
        for place, message in enumerate(messages)
        if message.role not in ("system", "developer")
    ]
    if places and messages[places[0]].role == "assistant" and task.prefix[0].role == "user":
        del places[0]
    for prefix in (task.prefix, hide_calls(task.prefix, of="user")):
        beginning = places[: len(prefix)]
        if [_outline(messages[place]) for place in beginning] == [_outline(m) for m in prefix]:
            unsampled = frozenset(beginning)
            return tuple(
                message.model_copy(update={"sampled": False}) if place in unsampled else message
                for place, message in enumerate(messages)
            )
    return tuple(messages)


def _outline(message: Message) -> tuple[str, str, list[str]]:
    return message.role, message.text, [call.name for call in message.tool_calls]


def _lacks_user_calls(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> bool:
    if environment.user_toolset is None:
        return False
    missing = find_absent_actions(task.criteria, executed_calls(messages))
    return any(action.requestor == "user" for action in missing)


def open_task(
    app: "App", task_id: str, cache: dict[str, Environment] | None = None
) -> tuple[Environment, TaskDefinition] | None:
    """Return a task and its environment; None if either is not known here. `cache` keeps
    environments by name. Raise EnvironmentsAway, EnvironmentBroken."""
    settings = app.settings
    name = task_id.partition("/")[0]
    cache = {} if cache is None else cache
    away = [str(path) for path in settings.environments.paths if is_away(path.expanduser())]
    if away:
        raise EnvironmentsAway(
            f"{', '.join(away)} of environments.paths is not there, or is empty, so it cannot be "
            f"said whose task {task_id} is; bring it back, or take it out of the setting"
        )
    try:
        if name not in cache:
            cache[name] = with_definitions(
                app,
                open_environment(
                    name, benchmarks=settings.benchmarks, paths=settings.environments.paths
                ),
            )
        task = cache[name].task(task_id)
    except (UnknownEnvironment, UnknownTask) as error:
        if settings.benchmarks is not None and is_away(settings.benchmarks):
            raise EnvironmentsAway(
                f"{settings.benchmarks} of the setting benchmarks is not there, or is empty, so it "
                f"cannot be said whether it has task {task_id}; bring it back, or take it out of "
                "the setting"
            ) from error
        return None
    return cache[name], task
