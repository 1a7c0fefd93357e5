"""Trajectories of tau-bench (v1): a JSON list of {task_id, reward, info, traj, trial}. The messages
are in OpenAI's form; `info.task` holds the task; base model and time are missing. A run that raised
has an empty `traj` and `info.error`; its reward 0 is no verdict. Mapping: docs/formats.md."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import AliasChoices, Field

from envs.catalog import catalog, identify
from events.canonical import exact_json, sha256
from events.messages import Action, Message, executed_calls
from events.rollouts import RolloutContent, RolloutEnded, Task
from producers.conversation import contradicts, findings, parse_messages
from producers.importers.documents import Shape, records
from producers.importers.records import (
    Identity,
    Record,
    Rejection,
    RolloutImport,
    Source,
    is_success,
    task_id,
)
from producers.storable import Unusable, Wire

NAME: Final = "tau-bench"
GRADER: Final = "tau-bench v1"

_POLICY_TITLE: Final = re.compile(r"#+\s*(\w+) agent policy", re.IGNORECASE)
_USER_STOP: Final = "###STOP###"


class WireAction(Wire):
    """A call that the task expects."""

    name: str
    arguments: dict[str, Any] = Field(default={}, validation_alias=AliasChoices("kwargs"))


class WireTask(Wire):
    """The task as it was when the run was graded."""

    user_id: str | None = None
    instruction: str | None = None
    actions: list[WireAction] = []
    outputs: list[str] = []


class WireReward(Wire):
    """The parts of the reward."""

    reward: float | None = None
    info: dict[str, Any] | None = None


class WireInfo(Wire):
    """The runner's data about the run."""

    task: WireTask | None = None
    reward_info: WireReward | None = None
    error: str | None = None


class WireRun(Wire):
    """One record."""

    task_id: int | str
    reward: float | None = None
    info: WireInfo = WireInfo()
    traj: list[Any]
    trial: int | None = None


def recognises(shape: Shape, keys: frozenset[str]) -> bool:
    """Return whether the first record's keys are this format's."""
    return "traj" in keys


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and "traj" in value and "task_id" in value


def read(source: Source, shape: Shape) -> Iterator[RolloutImport | Rejection]:
    """Yield every record of the file."""
    for item in source.track_progress(records(source.path, shape, is_record)):
        yield source.attempt(item, lambda record: _parse(source, record))


def _parse(source: Source, record: Record) -> RolloutImport:
    run = WireRun.model_validate(record.value)
    if not run.traj and run.info.error is None:
        raise Unusable("`traj` is empty and `info.error` does not say why; nothing was recorded")
    messages = tuple(_with_error(message) for message in parse_messages(run.traj))
    identity = source.identity(NAME, record, None)
    environment = _environment(run, messages)
    return source.rollout(
        record,
        _rollout(identity, run, messages, _task(run, record.value, environment)),
        None,
        _warnings(run, messages, environment),
    )


def _rollout(
    identity: Identity, run: WireRun, messages: tuple[Message, ...], task: Task
) -> RolloutEnded:
    judged = run.info.error is None
    return RolloutEnded(
        rollout=identity.id,
        alias=identity.alias,
        base=identity.base,
        policy=identity.base,
        source=NAME,
        purpose="import",
        task=task,
        trial=run.trial,
        success=is_success(run.reward) if judged else None,
        reward=run.reward,
        reward_parts=_parts(run),
        grader=GRADER if judged and run.reward is not None else None,
        termination=_termination(run, messages),
        content=RolloutContent(messages=messages),
    )


def _task(run: WireRun, raw: Mapping[str, Any], environment: str | None) -> Task:
    name = task_id(environment, str(run.task_id))
    if run.info.task is None:
        return Task(id=name, environment=environment)
    return Task(
        id=name,
        environment=environment,
        instruction=run.info.task.instruction,
        gold_actions=tuple(
            Action(name=action.name, arguments=action.arguments) for action in run.info.task.actions
        ),
        outputs=tuple(run.info.task.outputs),
        # v1 grades the database and the texts told to the user, which tau2 names so.
        reward_basis=("DB", "COMMUNICATE"),
        definition=sha256(exact_json(raw["info"]["task"])),
    )


def _environment(run: WireRun, messages: tuple[Message, ...]) -> str | None:
    """Return the environment that the policy's title names, else that of the tools. The title gives
    a trial without calls the task id of its siblings."""
    system = next((message.text for message in messages if message.role == "system"), "")
    title = _POLICY_TITLE.search(system, 0, 500)
    if title is not None and (declared := catalog(title.group(1).lower())) is not None:
        return declared.name
    gold = run.info.task.actions if run.info.task else []
    called = {item.call.name for item in executed_calls(messages)}
    return identify(called | {action.name for action in gold})


def _parts(run: WireRun) -> dict[str, float | None]:
    """Return the reward part in the file: `r_outputs`, else `r_actions`; the runner keeps one."""
    info = (run.info.reward_info.info if run.info.reward_info else None) or {}
    return {
        name: float(info[name])
        for name in ("r_actions", "r_outputs")
        if isinstance(info.get(name), int | float)
    }


def _termination(run: WireRun, messages: tuple[Message, ...]) -> str | None:
    if run.info.error is not None:
        return "error"
    if run.info.reward_info is None:
        # Finished runs are graded, so this one ran out of turns.
        return "max_steps"
    last = messages[-1]
    if last.role == "user" and _USER_STOP in last.text:
        return "user_stop"
    return "terminate_tool" if last.role == "tool" else None


def _with_error(message: Message) -> Message:
    """Return the message with `error` set: in v1 a tool's error begins with "Error"."""
    if message.role != "tool" or message.error is not None:
        return message
    return message.model_copy(update={"error": message.text.startswith("Error")})


def _warnings(
    run: WireRun, messages: tuple[Message, ...], environment: str | None
) -> tuple[str, ...]:
    declared = catalog(environment) if environment else None
    warnings = list(findings(messages, declared.tools if declared else None))
    if run.info.error is not None:
        warnings.append("the run ended with an error of the runner; it is not judged")
    if run.info.task is None:
        warnings.append("the task's definition is missing")
    recorded = run.info.reward_info.reward if run.info.reward_info else None
    if recorded is not None and run.reward is not None and recorded != run.reward:
        warnings.append("`reward` is not the reward of `reward_info`")
    if run.reward is not None and is_success(run.reward) and 0.0 in _parts(run).values():
        warnings.append("the reward is 1 although one of its parts is 0")
    outputs = run.info.task.outputs if run.info.task else []
    if contradicts(_parts(run).get("r_outputs"), outputs, messages):
        warnings.append("what the agent said does not give the recorded `r_outputs`")
    return tuple(warnings)
