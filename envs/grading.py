"""The verdict on a rollout, by replay: from its messages alone, wherever they come from.

DB: the writes of agent and user are replayed on a fresh state, the gold actions on another; both
must end equal. COMMUNICATE: every output, lower-cased, is part of a text of the agent, lower-cased
and without commas. ACTION: every gold action was called. These are tau2-bench's rules (its
evaluator); POLICY and MILESTONES ask the environment, and so does every part without a rule here.
A part that needs a judge is left open and never counts as right.

The verdict on a task with rules (`Criteria.rules`) is harder to win by guessing:

    COMMUNICATE   an output counts where it is said after its sources were read, and a number where
                  it is said as a number; none counts where the agent said too many unseen values
    texts         text in <think> tags does not count as said
    ACTION        a call that failed matches no gold action, and neither does one that lacks an
                  argument which counts
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from envs.comparison import evidence
from envs.comparison.arrangement import arrange_calls, arrange_states, arrange_task
from envs.comparison.numerals import find_unsaid
from envs.database import Database, Difference
from envs.environment import Environment
from envs.episode import REGULAR
from envs.task import Basis, Criteria, TaskDefinition
from events.messages import Action, ExecutedCall, Message, executed_calls

_PLAIN, _STRICT = "1", "2"


def get_version(task: TaskDefinition) -> str:
    """Return the version of the rules that judge a task. Every graded rollout records it."""
    return _PLAIN if task.criteria.rules is None else _STRICT


@dataclass(frozen=True, slots=True)
class Grade:
    """The unshaped reward of a rollout, part by part."""

    parts: dict[Basis, float | None]
    """1 or 0 for each part of the reward basis (MILESTONES: from 0 to 1); None if it needs a
    judge."""
    difference: tuple[Difference, ...] = ()
    """Differences from the expected state. Empty if DB is 1 or no part of the basis."""
    missing: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    irregular: str | None = None
    """The termination, if it alone makes the reward 0."""
    threshold: float = 1.0
    """Reward from which on the rollout is a success. It is below 1 only with MILESTONES."""

    @property
    def reward(self) -> float | None:
        """The product of the parts. None if no part is 0 and at least one needs a judge."""
        if self.irregular is not None or 0.0 in self.parts.values():
            return 0.0
        known = [value for value in self.parts.values() if value is not None]
        return math.prod(known, start=1.0) if len(known) == len(self.parts) else None

    @property
    def success(self) -> bool | None:
        """The unshaped verdict; None if the reward is unknown."""
        return None if self.reward is None else self.reward >= self.threshold

    @property
    def open_parts(self) -> tuple[Basis, ...]:
        """Parts that only a judge can decide."""
        return tuple(basis for basis, value in self.parts.items() if value is None)


class Grader:
    """Judges transcripts of one task. It makes the gold state once, at first need."""

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self.environment = environment
        self.task = arrange_task(environment, task)

    def grade(self, messages: Sequence[Message], termination: str | None) -> Grade:
        """Judge a transcript (without system prompt). No transcript makes it raise."""
        environment, task = self.environment, self.task
        if task.criteria.rules is not None:
            messages = [evidence.remove_thought(message) for message in messages]
        is_graded = termination in REGULAR or termination in environment.graded_endings
        irregular = None if is_graded else str(termination)
        executed = arrange_calls(environment, task, executed_calls(messages))
        parts: dict[Basis, float | None] = {}
        difference: tuple[Difference, ...] = ()
        missing: tuple[str, ...] = ()
        violations: tuple[str, ...] = ()
        for basis in task.criteria.reward_basis:
            if basis == "DB":
                difference = self._compare_states(executed)
                parts[basis] = float(not difference)
            elif basis == "COMMUNICATE":
                missing = find_absent_outputs(
                    task.criteria.outputs, messages, by_value=task.criteria.rules is not None
                )
                breaches = self._check_evidence(messages)
                parts[basis] = float(not missing and not breaches)
                violations += breaches
            elif basis == "ACTION":
                parts[basis] = float(not find_absent_actions(task.criteria, executed))
            elif basis == "POLICY":
                breaches = environment.violations(task, messages)
                parts[basis] = float(not breaches)
                violations += breaches
            elif basis == "MILESTONES":
                parts[basis], missed = environment.measure(task, messages) or (None, ())
                violations += missed
            elif basis == "NL_ASSERTION" and not task.criteria.nl_assertions:
                parts[basis] = 1.0
            else:
                wrong = environment.judge(basis, task, messages)
                parts[basis] = None if wrong is None else float(not wrong)
                violations += wrong or ()
        milestones = task.criteria.milestones
        threshold = 1.0 if milestones is None else milestones.threshold
        return Grade(parts, difference, missing, violations, irregular, threshold)

    def _compare_states(self, executed: Sequence[ExecutedCall]) -> tuple[Difference, ...]:
        """Return the transcript's differences from the gold state; none if gold is unknown."""
        if self.task.criteria.gold_actions is None:
            return ()
        actual = replay(self.environment, self.task, executed)
        return compare_states(self.environment, self.task, self._expected, actual)

    def _check_evidence(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return one sentence for each reason why the agent's outputs do not count."""
        criteria = self.task.criteria
        if criteria.rules is None:
            return ()
        policy, stateless = self.environment.policy(self.task), self.environment.catalog.generic
        return tuple(
            evidence.find_breaches(criteria.outputs, criteria.rules, policy, messages, stateless)
        )

    @cached_property
    def _expected(self) -> Database:
        return replay_gold(self.environment, self.task)


def grade(
    environment: Environment,
    task: TaskDefinition,
    messages: Sequence[Message],
    termination: str | None,
) -> Grade:
    """Judge a transcript (without system prompt) of a task. Pure; no transcript makes it raise."""
    return Grader(environment, task).grade(messages, termination)


def replay_gold(environment: Environment, task: TaskDefinition) -> Database:
    """Return the state after both parties' gold actions. Gold actions may fail."""
    database = environment.reset(task)
    tools = environment.open_tools(task, database)
    for action in task.criteria.gold_actions or ():
        tools.call(action.name, action.arguments, action.requestor)
    return database


def replay(
    environment: Environment, task: TaskDefinition, executed: Sequence[ExecutedCall]
) -> Database:
    """Return the state after the writes of both parties. Other calls are skipped."""
    database = environment.reset(task)
    tools, changes = environment.open_tools(task, database), environment.changes
    for item in executed:
        if item.call.name in changes:
            tools.call(item.call.name, item.call.arguments, item.requestor)
    return database


def compare_states(
    environment: Environment, task: TaskDefinition, expected: Database, actual: Database
) -> tuple[Difference, ...]:
    """Return the differences between two states that the reward part DB counts for this task."""
    return environment.compare_states(*arrange_states(environment, task, expected, actual))


def flag_errors(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> tuple[list[Message], int]:
    """Return the transcript with missing error flags filled in, and the number of the agent's
    malformed calls. Answered calls are replayed on a fresh state; flags that exist stay."""
    tools = environment.open_tools(task, environment.reset(task))
    places = {id(message): place for place, message in enumerate(messages)}
    flagged, malformed = list(messages), 0
    for item in executed_calls(messages):
        acts = item.requestor == "assistant" or environment.user_toolset is not None
        if item.result is None or not acts:
            continue
        answer = tools.call(item.call.name, item.call.arguments, item.requestor)
        malformed += answer.malformed and item.sampled and item.requestor == "assistant"
        if item.result.error is None:
            flag = {"error": answer.error}
            flagged[places[id(item.result)]] = item.result.model_copy(update=flag)
    return flagged, malformed


def find_absent_outputs(
    outputs: Sequence[str], messages: Sequence[Message], by_value: bool = False
) -> tuple[str, ...]:
    """Return the outputs that no text of the agent has or, with `by_value`, says (numerals.py)."""
    texts = [
        message.text for message in messages if message.role == "assistant" and message.content
    ]
    if by_value:
        return find_unsaid(outputs, texts)
    lowered = [text.lower().replace(",", "") for text in texts]
    return tuple(
        output for output in outputs if not any(output.lower() in text for text in lowered)
    )


def find_absent_actions(criteria: Criteria, executed: Sequence[ExecutedCall]) -> tuple[Action, ...]:
    """Return the gold actions that no call matches. Arguments in `compare` must be equal; without
    it, those that the call has, so that one without arguments matches (tau2-bench). With rules, all
    must be, and a failed call matches nothing."""
    matches = _matches if criteria.rules is None else _matches_strictly
    return tuple(
        action
        for action in criteria.gold_actions or ()
        if not any(matches(action, item) for item in executed)
    )


def _matches(action: Action, item: ExecutedCall) -> bool:
    arguments = item.call.arguments
    if item.call.name != action.name or isinstance(arguments, str):
        return False
    if item.requestor != action.requestor:
        return False
    compared = arguments if action.compare is None else action.compare
    return _only(compared, arguments) == _only(compared, action.arguments)


def _matches_strictly(action: Action, item: ExecutedCall) -> bool:
    compare = (*action.arguments,) if action.compare is None else action.compare
    strict = action.model_copy(update={"compare": compare})
    return item.result is not None and not item.failed and _matches(strict, item)


def _only(names: Iterable[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in names if name in arguments}
