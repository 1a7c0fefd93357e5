"""Recorded dialogues that teach a user: what passed, in the open, and without a fault."""

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads.evidence import PassedRollout
from daemon.config.settings import Log, Settings
from daemon.core.app import App
from daemon.jobs.dialogues import (
    FAULT,
    PERSON,
    UNREADABLE,
    DialogueOffer,
    offer_dialogues,
    read_dialogues,
)
from daemon.jobs.own_successes import NotShown
from daemon.solver.users.dialogue_file import write_dialogues
from daemon.solver.users.examples import play_gold
from envs.shop.environment import Shop
from envs.users import STOP
from events.codec import decode, encode
from events.envelope import Envelope, derive_id
from events.messages import Message
from events.privacy.sealing import Key
from events.rollouts import RolloutContent, RolloutEnded, Task
from events.streams import ROLLOUTS

SHOP: Final = Shop()
ALICE: Final = Key("k1", "alice", bytes(32))
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(Settings(home=tmp_path, log=Log(durability="process"))) as app:
        yield app


def record(
    app: App, task: str, messages: list[Message] | None = None, *, sealed: bool = False
) -> str:
    """A simulated rollout that passed a task, with what was said; its id."""
    name = derive_id("dialogue", task)
    said = play_gold(SHOP, SHOP.task(task)) if messages is None else messages
    policy = Message(role="system", content=SHOP.policy(SHOP.task(task)))
    event = RolloutEnded(
        rollout=name, alias="agent", base="base", policy="p1", source="simulated",
        purpose="evaluate", task=Task(id=task, environment="shop"), success=True, reward=1.0,
        grader="shop/1", content=RolloutContent(messages=(policy, *said) if said else ()),
    )  # fmt: skip
    envelope = Envelope(
        id=derive_id(name, "end"), type=event.TYPE, version=event.VERSION, subject=event.key(),
        time=BEGIN, person="alice" if sealed else None, keyid="k1" if sealed else None,
    )  # fmt: skip
    encoded = encode(envelope, event, 1, {}, ALICE if sealed else None)
    if encoded.blob is not None:
        app.blobs.put(encoded.blob)
    app.spool.append([encoded.entry])
    app.settle()
    return name


def offer(app: App, names: dict[str, str], most: int = 8) -> DialogueOffer:
    """What is offered of rollouts, by their tasks."""
    places = {
        decode(record).envelope.subject: (partition, record.offset)
        for partition in range(ROLLOUTS.partitions)
        for record in app.log.read(ROLLOUTS.name, partition, 0)
    }
    passed = [PassedRollout(name, task, *places[name]) for task, name in names.items()]
    with app.reading() as connection:
        return offer_dialogues(app, connection, SHOP, passed, most)


def test_a_dialogue_is_offered_with_the_sha256_of_the_file_that_is_read_back(app: App) -> None:
    tasks = [f"shop/cancel/{seed}" for seed in range(3)]
    names = {task: record(app, task) for task in tasks}
    offered = offer(app, names, most=2)
    assert offered.rollouts == tuple(sorted((names[tasks[0]], names[tasks[1]])))
    with app.reading() as connection:
        dialogues = read_dialogues(app, connection, tuple(reversed(offered.rollouts)))
    assert sha256(write_dialogues(dialogues)).hexdigest() == offered.sha256
    shown = next(item for item in dialogues if item.task == tasks[0])
    assert list(shown.messages) == play_gold(SHOP, SHOP.task(tasks[0])), "without system prompt"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sealed": True}, PERSON),
        ({"messages": []}, UNREADABLE),
        ({"messages": [Message(role="user", content="I want O99."), Message(
            role="assistant", content="Done."), Message(role="user", content=STOP)]}, FAULT),
    ],
    ids=["a person's", "no messages", "a fault"],
)  # fmt: skip
def test_what_is_no_accepted_dialogue_is_left_out_and_counted(
    app: App, changes: dict[str, Any], why: str
) -> None:
    task = "shop/cancel/7"
    assert offer(app, {task: record(app, task, **changes)}) == DialogueOffer((), None, {why: 1})


def test_a_rollout_that_is_gone_is_named(app: App) -> None:
    with app.reading() as connection, pytest.raises(NotShown, match="rollout gone is not in"):
        read_dialogues(app, connection, ("gone",))
