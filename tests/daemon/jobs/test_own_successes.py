"""Own successes: live sessions that a replay passed, as exact tokens, from the log alone."""

from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pydantic import TypeAdapter

from daemon.config.settings import Log, Settings
from daemon.core.app import App
from daemon.jobs.own_successes import NotShown, offer_successes, read_file
from daemon.solver.trajectory import Trajectory
from envs.shop.environment import Shop
from events.codec import Arrays, encode
from events.envelope import Envelope, derive_id
from events.jobs import TaskPool
from events.privacy.sealing import Key
from events.rollouts import CallEnded, CallStarted, EventData, RolloutEnded, Task

SHOP: Final = Shop()
WEAK: Final = TaskPool(name="weak", tasks=("shop/cancel/900", "shop/cancel/901"))
KEPT: Final = TaskPool(name="kept", tasks=("shop/return/900",), replay=True)
ALICE: Final = Key("k1", "alice", bytes(32))
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def record(
    app: App,
    task: str,
    *,
    sealed: bool = False,
    tokens: bool = True,
    prompt: int = 0,
    sampling: dict[str, Any] | None = None,
    **ended: Any,
) -> str:
    """A live session of two calls on this task, whose prompts begin with so many further tokens;
    the second has these sampling parameters, and `ended` changes its end. Its id."""
    name = derive_id(task, str(ended))
    noise = [Random(number).getrandbits(30) for number in range(prompt)]
    data: list[tuple[EventData, Arrays]] = []
    for turn in range(2):
        call = f"{name}/{turn}"
        started = CallStarted(
            call=call, session=name, alias="agent", base="base", policy="p1",
            sampling=sampling or {} if turn else {},
        )  # fmt: skip
        data.append((started, {}))
        arrays: Arrays = {
            "prompt_token_ids": array("i", [*noise, *[7, 8, 9][: turn + 2]]),
            "token_ids": array("i", [10 + turn, 1]),
            "logprobs": array("f", [-0.5, -0.25]),
        }
        data.append(
            (
                CallEnded(call=call, session=name, outcome="completed", trainable=tokens),
                arrays if tokens else {},
            )
        )
    fields = {
        "rollout": name, "alias": "agent", "base": "base", "policy": "p1", "source": "live",
        "session": name, "task": Task(id=task, environment="shop"), "success": True,
        "reward": 1.0, "grader": "shop/2", "calls": (f"{name}/0", f"{name}/1"),
    }  # fmt: skip
    data.append((RolloutEnded.model_validate({**fields, **ended}), {}))
    for number, (event, arrays) in enumerate(data):
        envelope = Envelope(
            id=derive_id(name, str(number)), type=event.TYPE, version=event.VERSION,
            subject=event.key(), time=BEGIN + timedelta(seconds=number),
            person="alice" if sealed else None, keyid="k1" if sealed else None,
        )  # fmt: skip
        encoded = encode(envelope, event, 1, arrays, ALICE if sealed else None)
        if encoded.blob is not None:
            app.blobs.put(encoded.blob)
        app.spool.append([encoded.entry])
    app.settle()
    return name


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(Settings(home=tmp_path, log=Log(durability="process"))) as app:
        yield app


def offered(app: App, most: int = 8) -> tuple[list[TaskPool], str | None]:
    with app.reading() as connection:
        return offer_successes(app, connection, SHOP, "agent", "base", (WEAK, KEPT), most)


def test_a_passed_session_of_the_pools_generator_is_shown_as_its_tokens(app: App) -> None:
    name = record(app, "shop/cancel/5")
    (weak, kept), digest = offered(app)
    assert (weak.successes, kept.successes) == ((name,), ())
    with app.reading() as connection:
        content = read_file(app, connection, weak.successes)
    assert sha256(content).hexdigest() == digest
    (shown,) = TypeAdapter(tuple[Trajectory, ...]).validate_json(content)
    assert (shown.rollout, shown.task, shown.policy) == (name, "shop/cancel/5", "p1")
    assert [(turn.prompt_ids, turn.completion_ids) for turn in shown.turns] == [
        ((7, 8), (10, 1)), ((7, 8, 9), (11, 1)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("shop/return/5", {}),
        (f"shop/cancel/{1 << 27}", {}),
        ("shop/cancel/5", {"sealed": True}),
        ("shop/cancel/5", {"tokens": False}),
        ("shop/cancel/5", {"grader": "feedback"}),
        ("shop/cancel/5", {"success": False, "reward": 0.0}),
        ("shop/cancel/5", {"base": "other"}),
        ("shop/cancel/5", {"purpose": "evaluate"}),
    ],
    ids=["other kind", "held out", "sealed", "no tokens", "a person's word", "failed", "other base",
         "trial"],
)  # fmt: skip
def test_what_is_no_verified_success_of_the_pool_is_not_shown(
    app: App, task: str, changes: dict[str, Any]
) -> None:
    record(app, task, **changes)
    assert offered(app) == ([WEAK, KEPT], None)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 1.0, "top_k": 0},
        {"top_p": 0.9},
        {"top_k": 20},
        {"min_p": 0.05},
        {"logit_bias": {"7": -100}},
        {"repetition_penalty": 1.1},
        {"response_format": {"type": "json_object"}},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_a_success_that_was_not_drawn_from_the_plain_softmax_is_not_shown(
    app: App, sampling: dict[str, Any]
) -> None:
    name = record(app, "shop/cancel/5", sampling=sampling)
    assert offered(app) == ([WEAK, KEPT], None)
    with app.reading() as connection, pytest.raises(NotShown, match=next(iter(sampling))):
        read_file(app, connection, [name])


def test_parameters_that_change_no_probability_keep_a_success(app: App) -> None:
    sampling = {
        "temperature": 1, "top_p": 1.0, "top_k": -1, "max_tokens": 64, "seed": 3, "stop": ["x"],
        "frequency_penalty": 0, "tool_choice": "auto", "reasoning_effort": "low",
    }  # fmt: skip
    name = record(app, "shop/cancel/5", sampling=sampling)
    assert offered(app)[0][0].successes == (name,)


def test_the_same_file_is_made_from_the_log_of_another_home(app: App, tmp_path: Path) -> None:
    tasks = [f"shop/cancel/{seed}" for seed in range(12)]
    for task in tasks:
        record(app, task)
    (weak, _), digest = offered(app)
    assert len(weak.successes) == 8, "as many as are asked for"
    with App(Settings(home=tmp_path / "other", log=Log(durability="process"))) as other:
        for task in reversed(tasks):
            record(other, task)
        with other.reading() as connection:
            content = read_file(other, connection, tuple(reversed(weak.successes)))
    assert sha256(content).hexdigest() == digest


def test_a_rollout_that_is_gone_is_named(app: App) -> None:
    with app.reading() as connection, pytest.raises(NotShown, match="rollout gone is not in"):
        read_file(app, connection, ("gone",))


def test_a_session_whose_blob_is_lost_keeps_no_other_from_being_shown(app: App) -> None:
    lost = record(app, "shop/cancel/5", prompt=300_000)
    blobs = [path for path in (app.home / "blobs").rglob("*") if path.is_file()]
    assert blobs, "its tokens are in blobs of their own"
    (weak, _), _ = offered(app)
    assert weak.successes == (lost,)
    for path in blobs:
        path.unlink()
    kept = record(app, "shop/cancel/6")
    (weak, _), _ = offered(app)
    assert weak.successes == (kept,)
    with app.reading() as connection, pytest.raises(NotShown, match="cannot be read: blob"):
        read_file(app, connection, (lost, kept))


def test_successes_follow_their_tasks_and_not_their_random_names(app: App) -> None:
    names = {record(app, task): task for task in (f"shop/cancel/{seed}" for seed in range(8))}
    (weak, _), _ = offered(app)
    assert [names[name] for name in weak.successes] == sorted(names.values())
    assert list(weak.successes) != sorted(names), "their names have another order"
