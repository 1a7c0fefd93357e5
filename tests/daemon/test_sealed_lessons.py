"""Lessons that are made of a person's session: sealed, practised by nobody else, and retired."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.diagnosis.labels import label_rollout
from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.maintenance import erasure
from envs.task import TaskDefinition
from events.learning import TaskProposed
from events.messages import Message
from events.privacy.sealing import Key
from events.rollouts import RolloutContent, RolloutEnded
from tests.daemon.conftest import Kintsugi
from tests.daemon.gateway.test_erasing import showing
from tests.daemon.repair.test_background import record
from tests.daemon.test_lessons import SHOP, draw, slipped
from tests.envs.lessons.recorded import record_slip

MARK: Final = "elmstreet"
ROSA: Final = "rosa.lindqvist"


@pytest.fixture
def app(home: Path) -> Iterator[App]:
    with App(load(home=home)) as opened:
        yield opened


def say(task: TaskDefinition, rollout: str, mark: str = MARK, **fields: Any) -> RolloutEnded:
    """A live rollout of a person, who names a street; the agent looks that up, in vain."""
    first, *others = record_slip(SHOP, task, "get_order", order_id=mark)
    first = Message(role=first.role, content=f"{first.text} I live in {mark}.")
    content = RolloutContent(messages=(first, *others))
    data = slipped(task, rollout, purpose="live", content=content, **fields)
    return data.model_copy(update={"labels": label_rollout(data).labels})


def make(kintsugi: Kintsugi, *arguments: str | Path, count: int = 1) -> Any:
    made = kintsugi("lessons", "make", "--env", "shop", "--count", str(count), *arguments, "--json")
    assert made.code == 0, made.err
    return made.json


def record_person(app: App, *tasks: TaskDefinition, mark: str = MARK) -> Key:
    """Record a session of Rosa with each task; return her key."""
    key = app.keys.of(ROSA)
    for number, task in enumerate(tasks):
        record(app, say(task, f"p{number}", mark), owner=key)
    return key


TRAIN: Final = draw("train", 4)


def test_a_persons_lesson_is_sealed_shown_and_made_once(
    app: App, home: Path, kintsugi: Kintsugi
) -> None:
    key = record_person(app, TRAIN[0])
    made = make(kintsugi)
    (task,) = made["added"]
    assert (made["made"], made["sealed"], made["left_out"]) == ({"recorded": 1}, 1, {})
    assert make(kintsugi)["added"] == [task]
    (line,) = kintsugi("lessons", "ls", "--json").json
    assert (line["sealed"], line["reflection"], line["rollout"]) == (True, "", "p0")
    assert line["source_task"] == TRAIN[0].id
    shown = kintsugi("lessons", "show", task, "--json").json
    assert MARK in shown["reflection"]
    assert MARK in shown["definition"]["prefix"][0]["content"]
    assert kintsugi("tasks", "show", task, "--json").json["definition"] == shown["definition"]
    assert "a call that was refused" in kintsugi("explain", task).out
    (event,) = [
        line["data"]
        for line in kintsugi("log", "cat", "learning", "--json").lines
        if line["type"] == "TaskProposed"
    ]
    assert (event["definition"], event["sealed"]["keyid"]) == (None, key.id)
    assert (event["task"]["instruction"], event["task"]["gold_actions"]) == (None, None)
    assert showing(home, MARK) == []
    record(app, say(TRAIN[1], "n0", "willowlane"))
    make(kintsugi, count=2)
    assert showing(home, "willowlane"), "what is nobody's is in the open"
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_the_id_of_a_persons_lesson_cannot_be_guessed(app: App, kintsugi: Kintsugi) -> None:
    record_person(app, TRAIN[0])
    (task,) = make(kintsugi)["added"]
    shown = kintsugi("lessons", "show", task, "--json").json
    whole = TaskDefinition.model_validate(shown["definition"], strict=False)
    assert whole.name_by_content().id == task
    assert whole.model_copy(update={"salt": None}).name_by_content().id != task


def test_an_erasure_retires_the_lesson_and_nobody_reads_it(
    app: App, home: Path, kintsugi: Kintsugi
) -> None:
    record_person(app, *TRAIN[:2])
    record(app, say(TRAIN[2], "other", "willowlane"), owner=app.keys.of("another"))
    made = make(kintsugi, count=3)
    looked = kintsugi("erase", "--person", ROSA, "--dry-run", "--json").json
    assert (looked["lessons"], looked["rollouts"]) == (2, 2)
    done = kintsugi("erase", "--person", ROSA, "--yes", "--json")
    assert (done.code, done.json["lessons"]) == (0, 2)
    lines = {line["task"]: line for line in kintsugi("lessons", "ls", "--json").json}
    assert sorted(lines) == sorted(made["added"])
    retired = [line for line in lines.values() if line["rollout"] != "other"]
    assert {line["state"] for line in retired} == {"retired"}
    assert {line["reason"] for line in retired} == {
        "it is made of a session of a person who was erased"
    }
    for command in (("lessons", "show"), ("tasks", "show"), ("lessons", "edit")):
        text = ("--reflection", "Look.") if command[1] == "edit" else ()
        refused = kintsugi(*command, retired[0]["task"], *text)
        assert (refused.code, "who was erased" in refused.err) == (1, True), refused.err
    (other,) = [line for line in lines.values() if line["rollout"] == "other"]
    assert other["state"] == "active"
    assert "willowlane" in kintsugi("lessons", "show", other["task"]).out
    assert showing(home, MARK, ROSA) == []
    assert kintsugi("erase", "--person", ROSA, "--yes", "--json").json["lessons"] == 0
    assert kintsugi("rebuild", "--json").json["equal"] is True
    again = make(kintsugi, count=1)
    assert again["left_out"] == {"its person was erased": 2}
    assert again["added"] == [other["task"]]


def test_a_killed_erasure_is_finished_by_the_role_that_works(
    app: App, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the erasure alone; and the lesson was proposed after it was looked for."""
    key = record_person(app, TRAIN[0])
    held = erasure.look(app, ROSA)
    (task,) = make(kintsugi)["added"]
    erasure.announce(app, held)
    app.settle()
    assert kintsugi("lessons", "ls", "--json").json[0]["state"] == "active"
    assert kintsugi("work", "--once").code == 0
    assert kintsugi("lessons", "ls", "--json").json[0]["state"] == "retired"
    assert key.id not in app.keys.ids()
    events = len(kintsugi("log", "cat", "learning").lines)
    assert kintsugi("work", "--once").code == 0
    assert len(kintsugi("log", "cat", "learning").lines) == events
    assert kintsugi("tasks", "show", task).code == 1
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_a_lesson_that_is_proposed_after_the_erasure_is_not_taken(
    app: App, kintsugi: Kintsugi
) -> None:
    """A process that held the key still sealed with it."""
    key = record_person(app, TRAIN[0])
    (task,) = make(kintsugi)["added"]
    (proposed,) = [
        line
        for line in kintsugi("log", "cat", "learning", "--json").lines
        if line["type"] == "TaskProposed"
    ]
    assert proposed["data"]["sealed"]["keyid"] == key.id
    assert kintsugi("erase", "--person", ROSA, "--yes").code == 0
    data = TaskProposed.model_validate_json(json.dumps(proposed["data"]))
    late = data.model_copy(
        update={"task": data.task.model_copy(update={"id": f"shop/={'0' * 64}"})}
    )
    Decisions(app).record({"again": data, "late": late}, "test")
    states = {line["task"]: line for line in kintsugi("tasks", "ls", "--json").json}
    assert states[task]["state"] == "retired"
    assert states[late.task.id]["state"] == "rejected"
    assert "who was erased" in states[late.task.id]["reason"]
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_an_edited_lesson_stays_sealed(app: App, home: Path, kintsugi: Kintsugi) -> None:
    record_person(app, TRAIN[0])
    (old,) = make(kintsugi)["added"]
    reflection = kintsugi("lessons", "show", old, "--json").json["reflection"]
    edited = kintsugi("lessons", "edit", old, "--reflection", f"Look: {reflection}", "--json")
    assert (edited.code, edited.json["sealed"], edited.json["replaces"]) == (0, True, old)
    assert edited.json["reflection"] == f"Look: {reflection}"
    assert kintsugi("lessons", "edit", old, "--reflection", f"Look: {reflection}").code == 0
    states = {line["task"]: line["state"] for line in kintsugi("lessons", "ls", "--json").json}
    assert states == {old: "retired", edited.json["task"]: "active"}
    assert showing(home, MARK) == []


def test_no_file_gets_a_persons_lesson_and_no_file_brings_one(
    app: App, home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    record_person(app, TRAIN[0])
    file = tmp_path / "lessons.jsonl"
    assert make(kintsugi, "--out", file)["sealed"] == 1
    assert file.read_text() == ""
    (task,) = make(kintsugi)["added"]
    copied = kintsugi("lessons", "show", task, "--json").out
    file.write_text(json.dumps(json.loads(copied)["definition"]))
    assert kintsugi("erase", "--person", ROSA, "--yes").code == 0
    added = kintsugi("tasks", "add", file, "--json")
    assert added.code == 3
    assert "made of a person's session" in added.json["rejected"][0]["reason"]
    assert showing(home, MARK) == []
