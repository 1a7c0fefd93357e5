"""Logs of other programs: one conversation per record in OpenAI's chat format.

    {"messages": [...], "tools": [...], "task_id": "t1", "reward": 1.0, ...}

Only `messages` is required (docs/formats.md). Unknown fields are ignored, because logs also hold
request parameters. The verdict is `success`, else whether the reward is within 1e-6 of 1. Without
both there is none.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import Field

from envs.catalog import catalog, identify
from events.canonical import exact_json, sha256
from events.json_text.guard import parse_arguments
from events.messages import Action, Message, Requestor, executed_calls
from events.rollouts import RolloutContent, RolloutEnded, Task, ToolRoles
from producers.conversation import findings, parse_messages
from producers.importers.documents import Shape, records
from producers.importers.records import (
    Identity,
    Record,
    Rejection,
    RolloutImport,
    Source,
    is_success,
    parse_time,
    task_id,
)
from producers.storable import Unusable, Wire

NAME: Final = "openai"


class WireToolFunction(Wire):
    """The name of a tool."""

    name: str


class WireTool(Wire):
    """An offered tool, in OpenAI's envelope or flat."""

    function: WireToolFunction | None = None
    name: str | None = None
    type: str | None = None


class WireAction(Wire):
    """A call of a perfect agent."""

    name: str
    arguments: Any = None
    requestor: Requestor = "assistant"
    compare: list[str] | None = None


class WireTask(Wire):
    """The task, as far as the log has it."""

    id: str | int | None = None
    environment: str | None = None
    capability: str | None = None
    instruction: str | None = None
    gold_actions: list[WireAction] | None = None
    outputs: list[str] = []
    reward_basis: list[str] = []


class WireRollout(Wire):
    """One record."""

    messages: list[Any] = Field(min_length=1)
    tools: list[WireTool] | None = None
    task_id: str | int | None = None
    task: WireTask | None = None
    environment: str | None = None
    gold_actions: list[WireAction] | None = None
    reward: float | None = None
    reward_parts: dict[str, float | None] = {}
    success: bool | None = None
    grader: str | None = None
    base: str | None = None
    model: str | None = None
    policy: str | None = None
    session: Annotated[str, Field(max_length=256)] | None = None
    trial: int | None = None
    seed: int | None = None
    time: str | float | None = None
    termination: str | None = None
    simulator: str | None = None
    write_tools: list[str] | None = None
    tool_roles: ToolRoles | None = None


def recognises(shape: Shape, keys: frozenset[str]) -> bool:
    """Return whether the first record's keys are this format's."""
    return "messages" in keys


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("messages"), list)


def read(source: Source, shape: Shape) -> Iterator[RolloutImport | Rejection]:
    """Yield every record of the file."""
    for item in source.track_progress(records(source.path, shape, is_record)):
        yield source.attempt(item, lambda record: _parse(source, record))


def _parse(source: Source, record: Record) -> RolloutImport:
    wire = WireRollout.model_validate(record.value)
    messages = parse_messages(wire.messages)
    offered = None if wire.tools is None else tuple(_tool_name(tool) for tool in wire.tools)
    gold = _gold(wire)
    identity = source.identity(NAME, record, wire.base or wire.model)
    environment = _environment(wire, messages, offered, gold)
    data = _rollout(identity, wire, messages, offered, _task(wire, record.value, environment, gold))
    declared = offered
    if declared is None and environment and (known := catalog(environment)) is not None:
        declared = tuple(known.tools)
    warnings = findings(messages, declared)
    if data.task is None and wire.environment is not None:
        warnings += ("names an environment but no task; give `task_id`",)
    return source.rollout(record, data, _time(wire.time), warnings)


def _rollout(
    identity: Identity,
    wire: WireRollout,
    messages: tuple[Message, ...],
    offered: tuple[str, ...] | None,
    task: Task | None,
) -> RolloutEnded:
    success = is_success(wire.reward) if wire.success is None else wire.success
    return RolloutEnded(
        rollout=identity.id,
        alias=identity.alias,
        base=identity.base,
        policy=wire.policy or identity.base,
        source=NAME,
        purpose="import",
        session=wire.session,
        task=task,
        trial=wire.trial,
        seed=wire.seed,
        success=success,
        reward=wire.reward,
        reward_parts=wire.reward_parts,
        grader=None if success is None else wire.grader or "recorded",
        termination=wire.termination,
        simulator=wire.simulator,
        write_tools=None if wire.write_tools is None else tuple(wire.write_tools),
        known_tools=offered,
        tool_roles=wire.tool_roles,
        content=RolloutContent(messages=messages),
    )


def _task(
    wire: WireRollout, raw: Any, environment: str | None, gold: tuple[Action, ...] | None
) -> Task | None:
    """Return the task; None if the record has none, so trials cannot be grouped."""
    task = wire.task or WireTask()
    name = task.id if task.id is not None else wire.task_id
    if name is None:
        if wire.task is not None or gold is not None:
            raise Unusable("a task is described but has no id; give `task_id` or `task.id`")
        return None
    definition = {"task": raw.get("task"), "gold_actions": raw.get("gold_actions")}
    return Task(
        id=task_id(environment, str(name)),
        environment=environment,
        capability=task.capability,
        instruction=task.instruction,
        gold_actions=gold,
        outputs=tuple(task.outputs),
        reward_basis=tuple(task.reward_basis),
        definition=sha256(exact_json(definition)) if any(definition.values()) else None,
    )


def _environment(
    wire: WireRollout,
    messages: tuple[Message, ...],
    offered: tuple[str, ...] | None,
    gold: tuple[Action, ...] | None,
) -> str | None:
    """Return the record's environment, else the one with its offered (else its called) tools."""
    named = wire.environment or (wire.task.environment if wire.task else None)
    if named is not None:
        return named
    if offered and (environment := identify(offered)) is not None:
        return environment
    called = {item.call.name for item in executed_calls(messages)}
    return identify(called | {action.name for action in gold or ()})


def _gold(wire: WireRollout) -> tuple[Action, ...] | None:
    actions = wire.gold_actions
    if actions is None and wire.task is not None:
        actions = wire.task.gold_actions
    return None if actions is None else tuple(_action(action) for action in actions)


def _action(wire: WireAction) -> Action:
    arguments = parse_arguments(wire.arguments)
    if isinstance(arguments, str):
        raise Unusable(f"the gold action {wire.name} has arguments that are no JSON object")
    compare = None if wire.compare is None else tuple(wire.compare)
    return Action(name=wire.name, arguments=arguments, requestor=wire.requestor, compare=compare)


def _tool_name(tool: WireTool) -> str:
    # A built-in tool of a provider, such as a web search, only has a type.
    name = tool.function.name if tool.function else tool.name or tool.type
    if name is None:
        raise Unusable("a tool of `tools` has none of `function.name`, `name` and `type`")
    return name


def _time(value: str | float | None) -> datetime | None:
    if value is None:
        return None
    try:
        return parse_time(value) if isinstance(value, str) else datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise Unusable(f"time {value!r} is neither ISO 8601 nor Unix seconds") from error
