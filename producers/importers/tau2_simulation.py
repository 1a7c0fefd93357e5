"""One simulation of tau2-bench with its task, as a rollout. Times without an offset, which the
runner writes in local time, count as UTC. A first message of the assistant without cost and tokens
is the runner's greeting, not a model's."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from envs.catalog import catalog, identify
from events.canonical import exact_json, sha256
from events.messages import Action, Message, Requestor, executed_calls
from events.rollouts import RolloutContent, RolloutEnded, Task
from producers.conversation import WireMessage, contradicts, findings, to_message
from producers.importers.records import (
    Identity,
    Record,
    RolloutImport,
    Source,
    is_success,
    parse_time,
    task_id,
)
from producers.storable import Unusable, Wire

NAME: Final = "tau2"

_UNJUDGED: Final = "infrastructure_error"
"""Termination of a run that failed because of the machine, not the agent."""

NO_USER: Final = "dummy_user"
"""Name of the user in solo mode, where the agent is alone and has the user's tools."""

FOREIGN_CHECKS: Final = (
    "the recorded action checks are not the gold actions of its task: the task ids are wrong, do "
    "not trust its reward"
)
"""Warning about a simulation that was graded by another task than the named one."""


class WireModel(Wire):
    """The model or program that plays agent or user."""

    implementation: str | None = None
    llm: str | None = None


class WireEnvironment(Wire):
    """The environment."""

    domain_name: str | None = None


class WireInfo(Wire):
    """Facts about all simulations of a results file."""

    git_commit: str | None = None
    agent_info: WireModel = WireModel()
    user_info: WireModel = WireModel()
    environment_info: WireEnvironment = WireEnvironment()


class WireAction(Wire):
    """A call that the task expects."""

    name: str
    arguments: dict[str, Any] = {}
    requestor: Requestor = "assistant"
    compare_args: list[str] | None = None


class WireCriteria(Wire):
    """The criteria of grading."""

    actions: list[WireAction] | None = None
    communicate_info: list[str] | None = None
    reward_basis: list[str] | None = None


class WireScenario(Wire):
    """Instructions for the user's simulator."""

    persona: str | None = None
    instructions: str | dict[str, Any] | None = None


class WireTask(Wire):
    """The embedded task."""

    id: str | int
    ticket: str | None = None
    user_scenario: WireScenario = WireScenario()
    evaluation_criteria: WireCriteria | None = None


class WireActionCheck(Wire):
    """The grader's check for one gold action."""

    action: WireAction


class WireReward(Wire):
    """The verdict."""

    reward: float | None = None
    reward_breakdown: dict[str, float | None] | None = None
    action_checks: list[WireActionCheck] | None = None


class WireTau2Message(WireMessage):
    """A message. In a tool result, `id` is the id of the call."""

    id: str | None = None
    cost: float | None = None
    usage: dict[str, Any] | None = None
    tool_messages: list["WireTau2Message"] | None = None


class WireSimulation(Wire):
    """One run."""

    task_id: str | int
    messages: list[WireTau2Message]
    termination_reason: str | None = None
    reward_info: WireReward | None = None
    start_time: str | None = None
    end_time: str | None = None
    timestamp: str | None = None
    trial: int | None = None
    seed: int | None = None


def parse_simulation(source: Source, record: Record, info: WireInfo) -> RolloutImport:
    """Return the rollout. Raises ValidationError or Unusable."""
    run = WireSimulation.model_validate(record.value["simulation"])
    task = WireTask.model_validate(record.value["task"])
    if not run.messages and run.termination_reason != _UNJUDGED:
        raise Unusable("`messages` is empty; nothing was recorded")
    messages = _messages(run.messages)
    environment = _environment(info, task, messages)
    identity = source.identity(NAME, record, info.agent_info.llm)
    time, bad_time = _time(run)
    return source.rollout(
        record,
        _rollout(
            identity, run, info, messages, _task(task, record.value["task"], info, environment)
        ),
        time,
        bad_time + _warnings(run, task, messages, environment),
    )


def _rollout(
    identity: Identity,
    run: WireSimulation,
    info: WireInfo,
    messages: tuple[Message, ...],
    task: Task,
) -> RolloutEnded:
    reward = run.reward_info.reward if run.reward_info else None
    judged = reward is not None and run.termination_reason != _UNJUDGED
    return RolloutEnded(
        rollout=identity.id,
        alias=identity.alias,
        base=identity.base,
        policy=identity.base,
        source=NAME,
        purpose="import",
        task=task,
        trial=run.trial,
        seed=run.seed,
        success=is_success(reward) if judged else None,
        reward=reward,
        reward_parts=(run.reward_info.reward_breakdown if run.reward_info else None) or {},
        grader=f"tau2 {(info.git_commit or 'unknown')[:12]}" if judged else None,
        termination=run.termination_reason,
        simulator=_simulator(info.user_info),
        content=RolloutContent(messages=messages),
    )


def _task(wire: WireTask, raw: Any, info: WireInfo, environment: str | None) -> Task:
    criteria = wire.evaluation_criteria
    solo = info.user_info.implementation == NO_USER
    return Task(
        # A domain that is no known environment still separates task ids.
        id=task_id(environment or info.environment_info.domain_name, str(wire.id)),
        environment=environment,
        instruction=_instruction(wire),
        gold_actions=_gold(criteria.actions, solo) if criteria else None,
        outputs=tuple((criteria.communicate_info if criteria else None) or ()),
        reward_basis=tuple((criteria.reward_basis if criteria else None) or ()),
        definition=sha256(exact_json(raw)),
    )


def _gold(actions: Iterable[WireAction] | None, solo: bool) -> tuple[Action, ...] | None:
    """Return the gold actions. In solo mode the agent makes all of them."""
    if actions is None:
        return None
    return tuple(
        Action(
            name=action.name,
            arguments=action.arguments,
            requestor="assistant" if solo else action.requestor,
            compare=None if action.compare_args is None else tuple(action.compare_args),
        )
        for action in actions
    )


def _instruction(task: WireTask) -> str | None:
    """Return the user's instructions, a labelled line per part; else the task's ticket."""
    instructions = task.user_scenario.instructions
    parts = {"persona": task.user_scenario.persona}
    parts |= instructions if isinstance(instructions, dict) else {"instructions": instructions}
    lines = [
        f"{name.replace('_', ' ').capitalize()}: {text}"
        for name, text in parts.items()
        if isinstance(text, str) and text
    ]
    return "\n".join(lines) or task.ticket


def _messages(wires: Iterable[WireTau2Message]) -> tuple[Message, ...]:
    flat = [message for wire in wires for message in (wire.tool_messages or [wire])]
    messages = [_to_message(wire) for wire in flat]
    if messages and _is_welcome(flat[0]):
        messages[0] = messages[0].model_copy(update={"sampled": False})
    return tuple(messages)


def _to_message(wire: WireTau2Message) -> Message:
    message = to_message(wire)
    if wire.role != "tool":
        return message
    return message.model_copy(update={"tool_call_id": wire.id})


def _is_welcome(wire: WireTau2Message) -> bool:
    return wire.role == "assistant" and not wire.tool_calls and not wire.usage and not wire.cost


def _environment(info: WireInfo, task: WireTask, messages: tuple[Message, ...]) -> str | None:
    """Return the domain if it is a known environment, else the environment of the called tools."""
    if info.environment_info.domain_name is not None:
        declared = catalog(info.environment_info.domain_name)
        if declared is not None:
            return declared.name
    gold = (task.evaluation_criteria.actions if task.evaluation_criteria else None) or []
    called = {item.call.name for item in executed_calls(messages)}
    return identify(called | {action.name for action in gold})


def _time(run: WireSimulation) -> tuple[datetime | None, tuple[str, ...]]:
    """Return when the run ended, or None, and a warning for an unreadable time."""
    warnings: tuple[str, ...] = ()
    for text in (run.end_time, run.timestamp, run.start_time):
        if text is None:
            continue
        try:
            return parse_time(text), warnings
        except (ValueError, OverflowError):
            warnings = ("a time is not ISO 8601",)
    return None, warnings


def _simulator(user: WireModel) -> str | None:
    """Return the user's model, or the name of its implementation if that is unusual."""
    if user.implementation in (None, "user_simulator"):
        return user.llm
    return user.implementation


def _warnings(
    run: WireSimulation, task: WireTask, messages: tuple[Message, ...], environment: str | None
) -> tuple[str, ...]:
    declared = catalog(environment) if environment else None
    warnings = list(findings(messages, declared.tools if declared else None))
    criteria = task.evaluation_criteria or WireCriteria()
    reward = run.reward_info
    if run.termination_reason == _UNJUDGED:
        warnings.append("the run ended with an infrastructure error; it is not judged")
    if reward is None or reward.reward is None:
        warnings.append("the reward is missing; the run is not judged")
        return tuple(warnings)
    checked = [check.action for check in reward.action_checks or ()]
    if checked and checked != criteria.actions:
        warnings.append(FOREIGN_CHECKS)
    if reward.reward_breakdown and _product(reward.reward_breakdown.values()) != reward.reward:
        warnings.append("the reward is not the product of its parts")
    part = (reward.reward_breakdown or {}).get("COMMUNICATE")
    if contradicts(part, criteria.communicate_info or (), messages):
        warnings.append("what the agent said does not give the recorded COMMUNICATE part")
    return tuple(warnings)


def _product(parts: Iterable[float | None]) -> float:
    product = 1.0
    for part in parts:
        product *= part or 0.0
    return product
