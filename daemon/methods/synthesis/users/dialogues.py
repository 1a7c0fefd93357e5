"""The recorded dialogues from which a model learns to play an agent's users.

    choose_dialogues(connection, alias, environment)      the rollouts, the newest first
    count_dialogues(connection, alias, environment)       how many these are, which each tick asks

Accepted is a simulated dialogue that passed its task with no objection of any rule, whose messages
are recorded, and on no seed that is reserved for reports or gates: one for each task, the newest.
Whether its user keeps to the task by rule, and whether a task by content is kept for tests, is
looked at when its text is read (daemon/jobs/dialogues.py).

Sessions with persons are left out: nothing hands their keys to a job that would write down what
they said.
"""

from typing import TYPE_CHECKING

from consumers.reads.evidence import (
    PassedRollout,
    list_dialogue_successes,
    list_dialogue_tasks,
)
from daemon.proposer.candidate import is_evaluation_seed
from daemon.proposer.verification import seed_of

if TYPE_CHECKING:
    from sqlalchemy import Connection


def choose_dialogues(
    connection: "Connection", alias: str, environment: str
) -> tuple[PassedRollout, ...]:
    """Return the dialogues of an agent in an environment that a job may learn from, one for each
    task, the newest first."""
    newest: dict[str, PassedRollout] = {}
    for dialogue in list_dialogue_successes(connection, alias, environment):
        if dialogue.task not in newest and may_teach(dialogue.task):
            newest[dialogue.task] = dialogue
    return tuple(newest.values())


def count_dialogues(connection: "Connection", alias: str, environment: str) -> int:
    """Count the dialogues that `choose_dialogues` returns."""
    tasks = list_dialogue_tasks(connection, alias, environment)
    return sum(map(may_teach, tasks))


def may_teach(task: str) -> bool:
    """Whether a task has no seed that is reserved for reports or gates."""
    return not is_evaluation_seed(seed_of(task))
