"""The recorded dialogues from which a model learns to play an agent's users.

    choose_dialogues(connection, alias, environment, most)      the rollouts, the newest first

Accepted is a simulated dialogue that passed its task with no objection of any rule, whose messages
are recorded, and on no seed that is reserved for reports or gates: one for each task, the newest.
Whether its user keeps to the task by rule is looked at when its text is read
(daemon/jobs/dialogues.py).

Sessions with persons are left out: nothing hands their keys to a job that would write down what
they said. They are counted.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.reads.evidence import (
    PassedRollout,
    count_session_successes,
    list_dialogue_successes,
)
from daemon.proposer.candidate import FIRST_HELD_OUT, FIRST_SEED, LAST_SEED
from daemon.proposer.verification import seed_of

if TYPE_CHECKING:
    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class DialogueStock:
    """Dialogues that a job may learn from."""

    rollouts: tuple[PassedRollout, ...]
    """One for each task, the newest first."""
    persons: int
    """Sessions with persons that passed, which are left out."""


def choose_dialogues(
    connection: "Connection", alias: str, environment: str, *, until: str | None = None
) -> DialogueStock:
    """Return the dialogues of an agent in an environment that a job may learn from; `until`: as
    they were at a moment (RFC 3339, UTC)."""
    newest: dict[str, PassedRollout] = {}
    for dialogue in list_dialogue_successes(connection, alias, environment, until=until):
        if may_teach(dialogue.task):
            newest.setdefault(dialogue.task, dialogue)
    persons = count_session_successes(connection, alias, environment)
    return DialogueStock(tuple(newest.values()), persons)


def may_teach(task: str) -> bool:
    """Whether a task has no seed that is reserved for reports or gates."""
    seed = seed_of(task)
    return seed is None or seed < FIRST_HELD_OUT or FIRST_SEED <= seed <= LAST_SEED
