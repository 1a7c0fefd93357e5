"""Facts that follow from a task alone, each computed once (pure).

    facts = TaskFacts(environment, task)
    facts.replay.refusals         the tools that refuse a gold action
    facts.knowledge.missing       values that gold actions need and an agent cannot know

Each `find_...` function returns a sentence about a fault, or None. The checks V2, V3 and V5 of
written tasks use these functions, and so do the faults of tasks (task_faults.py).
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
"""Parts of a reward that may depend on a write in the tables."""


@dataclass(frozen=True, slots=True)
class GoldReplay:
    """The results of making a task's gold actions in its first state."""

    outputs: tuple[str, ...]
    """Results of the gold actions that succeed."""
    digest: str
    """Digest of the state after the gold actions."""
    refusals: tuple[tuple[str, str], ...]
    """Tool and error text of each gold action that fails."""


class TaskFacts:
    """A task, and facts about it that are computed on demand."""

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self.environment, self.task = environment, task

    @cached_property
    def replay(self) -> GoldReplay:
        """The result of making the gold actions, computed once."""
        return replay_gold(self.environment, self.task)

    @cached_property
    def knowledge(self) -> Knowledge:
        """The values that an agent can know in this task."""
        return Knowledge(self.environment, self.task)

    @cached_property
    def repeats(self) -> bool:
        """Whether making the gold actions again leads to the same state."""
        return replay_gold(self.environment, self.task).digest == self.replay.digest

    @cached_property
    def changes(self) -> bool:
        """Whether the state after the gold actions differs from the first state."""
        return self.replay.digest != self.environment.reset(self.task).digest()


def replay_gold(environment: Environment, task: TaskDefinition) -> GoldReplay:
    """Make the gold actions of a task on a fresh state, and return the results."""
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
    """Return the reason why a task's gold actions cannot be replayed at all, or None."""
    actions = facts.task.criteria.gold_actions
    if actions is None:
        return "nobody knows what a perfect agent calls"
    if facts.environment.user_toolset is None and any(
        action.requestor != "assistant" for action in actions
    ):
        return "a gold action is the user's, and users here have no tools"
    return None


def find_gold_failure(facts: TaskFacts) -> str | None:
    """Return the reason why replaying a task's gold actions fails, or None."""
    for tool, answer in facts.replay.refusals:
        return f"gold action {tool} is refused: {answer[:200]}"
    return find_wrong_end(facts)


def find_wrong_end(facts: TaskFacts) -> str | None:
    """Return the fault of the state after the gold actions, or None; refused calls are ignored. If
    the reward ignores the tables, the state only has to be repeatable (BFCL's state is
    elsewhere)."""
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
    """Return a sentence on a value that a gold write needs and an agent cannot know, or None."""
    if not facts.knowledge.missing:
        return None
    tool, name, value = facts.knowledge.missing[0]
    return f"{name} of {tool} is {value!r}, which nobody says and no tool tells from what is said"


def find_unknown_output(facts: TaskFacts) -> str | None:
    """Return a sentence on an output that no tool result and no policy text yields, or None. An
    output with a comma is a fault too, as graded texts have no commas."""
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
    """Return whether an output's words and numbers come from the policy, gold results or look-ups.
    Numbers may be computed from others."""
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
