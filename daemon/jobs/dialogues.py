"""The recorded dialogues that a job which teaches the user learns from, as a file in its folder.

    offer = offer_dialogues(app, connection, rollouts, most)     which of them can be shown
    content = read_dialogue_file(app, connection, names)         the file that a job reads

Shown is a simulated dialogue with the environment's own user that passed and whose messages the log
holds; of two in which the user says the same, the newer one. The file follows from the log alone,
so it can be made anywhere and again; its sha256 is in the spec of the job. A person's session is
never read.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from consumers.reads.evidence import PassedRollout
from consumers.reads.rollouts import rollout_row
from daemon.jobs.own_successes import NotShown, read_event
from daemon.solver.users.recorded import RecordedDialogue, write_dialogues
from events.rollouts import RolloutEnded
from producers.simulation import SCRIPTED

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DialogueOffer:
    """Dialogues that a job is shown."""

    rollouts: tuple[str, ...]
    sha256: str | None
    """Of their file; None where there is none."""


def offer_dialogues(
    app: "App", connection: "Connection", rollouts: Iterable[PassedRollout], most: int
) -> DialogueOffer:
    """Return which of these dialogues a job can be shown, at most `most`, the first ones of those
    that are given."""
    shown: dict[str, RecordedDialogue] = {}
    for passed in rollouts:
        if len(shown) == most:
            break
        try:
            dialogue = _read_dialogue(app, passed)
        except NotShown as error:
            log.info("not shown to a job that teaches the user: %s", error)
            continue
        shown.setdefault(_identify(dialogue), dialogue)
    if not shown:
        return DialogueOffer((), None)
    dialogues = list(shown.values())
    names = tuple(sorted(dialogue.rollout for dialogue in dialogues))
    return DialogueOffer(names, sha256(write_dialogues(dialogues)).hexdigest())


def read_dialogue_file(app: "App", connection: "Connection", names: Sequence[str]) -> bytes:
    """Return the content of the file of these rollouts. Raises NotShown for one that is no longer
    there, or whose words are."""
    return write_dialogues(_read_named(app, connection, name) for name in set(names))


def _read_named(app: "App", connection: "Connection", name: str) -> RecordedDialogue:
    row = rollout_row(connection, name)
    if row is None or row.line.task is None:
        raise NotShown(f"rollout {name} is not in the tables; kintsugi rebuild folds the log")
    return _read_dialogue(app, PassedRollout(name, row.line.task, row.partition, row.offset))


def _read_dialogue(app: "App", passed: PassedRollout) -> RecordedDialogue:
    """Read a dialogue from the event of its rollout. Raises NotShown."""
    name = passed.rollout
    data = read_event(app, name, passed.partition, passed.offset, arrays=False).event.data
    if not isinstance(data, RolloutEnded) or data.rollout != name or not data.success:
        raise NotShown(f"rollout {name} is not where the tables say; kintsugi rebuild repairs them")
    if data.session is not None:
        raise NotShown(f"rollout {name} is a session with a person")
    if data.simulator != SCRIPTED:
        raise NotShown(f"the user of rollout {name} is {data.simulator}, and not the exact one")
    if data.content is None:
        raise NotShown(f"of rollout {name} no message is recorded")
    messages = tuple(message for message in data.content.messages if message.role != "system")
    return RecordedDialogue(rollout=name, task=passed.task, policy=data.policy, messages=messages)


def _identify(dialogue: RecordedDialogue) -> str:
    """What the user says and calls, as text."""
    own = [message for message in dialogue.messages if message.role == "user"]
    return "\n".join(message.model_dump_json(exclude_none=True) for message in own)
