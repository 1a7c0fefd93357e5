"""Facts that follow from a task alone, each computed once (pure).

    facts = TaskFacts(environment, task)
    facts.replay.refusals         the tools that refuse a gold action
    facts.knowledge.missing       what gold needs and an agent cannot know

Each `find_...` function returns a sentence, or None. The checks V2, V3 and V5 of written tasks and
the faults of tasks (task_faults.py) are these functions.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from envs.comparison.numerals import says
from envs.environment import Environment
from envs.evidence.observability import Knowledge, is_computable
from envs.evidence.words import words
from envs.task import Basis, TaskDefinition

_NUMBER: Final = re.compile(r"\d+(\.\d+)?")
_STATE_PARTS: Final[frozenset[Basis]] = frozenset(
    ["DB", "ACTION", "POLICY", "MILESTONES", "ENV_ASSERTION"]
)
"""Parts of a reward that a write in the tables may decide."""


@dataclass(frozen=True, slots=True)
class GoldReplay:
    """The gold actions of a task, made in its first state."""

    outputs: tuple[str, ...]
    """Answers to the gold actions that the tools take."""
    digest: str
    """Digest of the state after the gold actions."""
    refusals: tuple[tuple[str, str], ...]
    """Tool and answer of each gold action that is refused."""


class TaskFacts:
    """A task and the facts about it."""

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self.environment, self.task = environment, task

    @cached_property
    def replay(self) -> GoldReplay:
        """The gold actions, made once."""
        return replay_gold(self.environment, self.task)

    @cached_property
    def knowledge(self) -> Knowledge:
        """An agent's possible knowledge."""
        return Knowledge(self.environment, self.task)

    @cached_property
    def repeats(self) -> bool:
        """Whether the gold actions end in the same state again."""
        return replay_gold(self.environment, self.task).digest == self.replay.digest

    @cached_property
    def changes(self) -> bool:
        """Whether the gold actions leave a state other than the first."""
        return self.replay.digest != self.environment.reset(self.task).digest()


def replay_gold(environment: Environment, task: TaskDefinition) -> GoldReplay:
    """Make the gold actions of a task in a fresh state."""
    database = environment.reset(task)
    tools = environment.open_tools(task, database)
    outputs, refusals = [], []
    for action in task.criteria.gold_actions or ():
        result = tools.call(action.name, action.arguments, action.requestor)
        if result.error:
            refusals.append((action.name, result.content))
        else:
            outputs.append(result.content)
    return GoldReplay(tuple(outputs), database.digest(), tuple(refusals))


def find_gold_gap(facts: TaskFacts) -> str | None:
    """Return why the gold actions of a task cannot be replayed."""
    actions = facts.task.criteria.gold_actions
    if actions is None:
        return "nobody knows what a perfect agent calls"
    if facts.environment.user_toolset is None and any(
        action.requestor != "assistant" for action in actions
    ):
        return "a gold action is the user's, and users here have no tools"
    return None


def find_gold_failure(facts: TaskFacts) -> str | None:
    """Return how the replay of the gold actions of a task fails."""
    for tool, answer in facts.replay.refusals:
        return f"gold action {tool} is refused: {answer[:200]}"
    return find_wrong_end(facts)


def find_wrong_end(facts: TaskFacts) -> str | None:
    """Return what is wrong with the state after the gold actions, whatever tools refuse. A state
    that the reward ignores is skipped, as it may lie outside the tables (BFCL's classes)."""
    if not facts.repeats:
        return "the gold actions end in another state the second time"
    if not _STATE_PARTS & set(facts.task.criteria.reward_basis):
        return None
    actions = facts.task.criteria.gold_actions or ()
    writes = [action.name for action in actions if action.name in facts.environment.changes]
    if writes and not facts.changes:
        return f"the gold actions write ({', '.join(writes)}) and change nothing"
    return None


def find_unknown_value(facts: TaskFacts) -> str | None:
    """Return a value that a gold write needs and an agent cannot know."""
    if not facts.knowledge.missing:
        return None
    tool, name, value = facts.knowledge.missing[0]
    return f"{name} of {tool} is {value!r}, which nobody says and no tool tells from what is said"


def find_unknown_output(facts: TaskFacts) -> str | None:
    """Return what is wrong with an output that no tool answers and no policy dictates. An output
    with a comma is never said, as graded texts have none."""
    rules = " ".join(facts.environment.policy(facts.task).lower().replace(",", "").split())
    for output in facts.task.criteria.outputs:
        if "," in output:
            return f"the output {output!r} has a comma, and graded texts have none"
        if " ".join(output.lower().split()) not in rules and not _is_derivable(
            facts, output, rules
        ):
            return f"no tool answers {output!r}"
    return None


def _is_derivable(facts: TaskFacts, output: str, rules: str) -> bool:
    """Return whether an output's words and numbers come from the policy, gold calls or what can be
    looked up. Numbers may be computed."""
    named, dictated, answered = words(output), words(rules), words(" ".join(facts.replay.outputs))
    if named & answered and named <= answered | dictated:
        return True
    # A result may write a number in another way: 1289.0 for 1289.
    if any(says(text, output) for text in facts.replay.outputs):
        return True
    if not facts.knowledge.missing:
        facts.knowledge.look_around()
    known = facts.knowledge.words
    numbers = [float(word) for word in {*known, *dictated} if _NUMBER.fullmatch(word)]
    untold = [word for word in named - known if word not in dictated]
    derivable = all(
        _NUMBER.fullmatch(word) and is_computable(float(word), numbers) for word in untold
    )
    return derivable and bool(named - dictated)
