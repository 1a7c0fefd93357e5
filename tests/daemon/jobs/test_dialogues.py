"""Recorded dialogues that teach a user: what passed, in the open, and without a fault."""

from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.reads.evidence import PassedRollout
from daemon.config.settings import Log, Settings
from daemon.core.app import App
from daemon.jobs.own_successes import NotShown
from daemon.methods.synthesis.user_training.dialogue_file import write_dialogues
from daemon.methods.synthesis.user_training.examples import play_gold
from daemon.methods.synthesis.users.dialogues import (
    FAULT,
    FOR_TESTS,
    PERSON,
    UNREADABLE,
    DialogueOffer,
    offer_dialogues,
    read_dialogues,
)
from envs.environment import Environment
from envs.lessons.making import make_lessons
from envs.shop.environment import Shop
from envs.task import TaskDefinition, find_split, write_body
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
    app: App, task: str, messages: list[Message] | None = None, *, sealed: bool = False,
    environment: Environment = SHOP,
) -> str:  # fmt: skip
    """A simulated rollout that passed a task, with what was said; its id."""
    name = derive_id("dialogue", task)
    said = play_gold(SHOP, SHOP.task(task)) if messages is None else messages
    policy = Message(role="system", content=environment.policy(environment.task(task)))
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


def offer(
    app: App, names: dict[str, str], most: int = 8, environment: Environment = SHOP
) -> DialogueOffer:
    """What is offered of rollouts, by their tasks."""
    places = {
        decode(record).envelope.subject: (partition, record.offset)
        for partition in range(ROLLOUTS.partitions)
        for record in app.log.read(ROLLOUTS.name, partition, 0)
    }
    passed = [PassedRollout(name, task, *places[name]) for task, name in names.items()]
    return offer_dialogues(app, environment, passed, most)


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


def test_a_lesson_teaches_users_where_its_source_is_for_neither_tests_nor_gates(app: App) -> None:
    shop = Shop()
    trains = next(seed for seed in count() if find_split(f"shop/cancel/{seed}") == "train")
    tests = next(seed for seed in count() if find_split(f"shop/cancel/{seed}") == "test")
    gates = next(s for s in count(1 << 32) if find_split(f"shop/cancel/{s}") == "train")
    offers = {}
    for seed in (trains, tests, gates):
        source = shop.task(f"shop/cancel/{seed}")
        lesson = make_lessons(shop, [source], 1, 0).lessons[0]
        shop.use_definitions({lesson.id: write_body(lesson.dump_body())}.get)
        messages = list(play_gold(shop, lesson))
        name = record(app, lesson.id, messages, environment=shop)
        offers[seed] = offer(app, {lesson.id: name}, environment=shop)
    assert len(offers[trains].rollouts) == 1
    assert offers[tests] == DialogueOffer((), None, {FOR_TESTS: 1})
    assert offers[gates] == DialogueOffer((), None, {FOR_TESTS: 1})


def test_a_task_of_a_benchmark_teaches_no_user(app: App) -> None:
    class BenchmarkShop(Shop):
        """A shop whose tasks are those of a benchmark."""

        def task(self, task_id: str) -> TaskDefinition:
            return super().task(task_id).model_copy(update={"split": "test"})

    name = record(app, "shop/cancel/7")
    offered = offer(app, {"shop/cancel/7": name}, environment=BenchmarkShop())
    assert offered == DialogueOffer((), None, {FOR_TESTS: 1})


def test_a_rollout_that_is_gone_is_named(app: App) -> None:
    with app.reading() as connection, pytest.raises(NotShown, match="rollout gone is not in"):
        read_dialogues(app, connection, ("gone",))
