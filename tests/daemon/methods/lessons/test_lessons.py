"""`kintsugi lessons`: made of recorded failures and of fresh tasks, listed, shown and edited."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.diagnosis.labels import label_rollout
from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.decision_log import Act
from daemon.methods.lessons.writer import draw_sources
from daemon.proposer import task_buffer
from daemon.proposer.additions import Additions, RawDefinition
from daemon.proposer.candidate import FIRST_HELD_OUT, FIRST_SEED, LAST_SEED
from envs.shop.environment import Shop
from envs.task import TaskDefinition, find_split
from events.rollouts import RolloutContent, RolloutEnded
from tests.daemon.conftest import Kintsugi
from tests.daemon.repair.test_background import record
from tests.envs.lessons.recorded import record_slip

SHOP = Shop()


@pytest.fixture
def app(home: Path) -> Iterator[App]:
    with App(load(home=home)) as opened:
        yield opened


def draw(split: str, count: int) -> list[TaskDefinition]:
    """Tasks of traffic whose source is of a split."""
    tasks = (SHOP.generate("cancel", seed) for seed in range(1000))
    chosen = (task for task in tasks if find_split(task.id) == split)
    return [next(chosen) for _ in range(count)]


TRAIN = draw("train", 4)


def slipped(task: TaskDefinition, rollout: str, **fields: Any) -> RolloutEnded:
    """A rollout in which a lookup fails; `of` is its task as it says."""
    messages = record_slip(SHOP, task, "get_order", order_id="O0")
    values: dict[str, Any] = {
        "alias": "agent", "base": "tiny", "policy": "tiny", "source": "test", "purpose": "train",
        "task": fields.pop("of", task.record()), "success": False, "reward": 0.0,
        "termination": "user_stop",
        "content": RolloutContent(messages=messages),
    }  # fmt: skip
    return RolloutEnded(rollout=rollout, **{**values, **fields})


def test_recorded_failures_come_first_and_what_may_not_be_used_is_counted(
    app: App, kintsugi: Kintsugi
) -> None:
    (kept_for_tests,) = draw("test", 1)
    train, live, evaluated, person = TRAIN
    record(
        app,
        slipped(train, "t1"),
        slipped(live, "l1", purpose="live"),
        slipped(evaluated, "e1"),
        slipped(evaluated, "e2", purpose="evaluate"),
        slipped(kept_for_tests, "k1"),
        slipped(train, "n1", purpose="live", of=None),
        slipped(SHOP.generate("cancel", FIRST_HELD_OUT), "h1"),
        slipped(train, "c1", of=train.record().model_copy(update={"definition": "0" * 64})),
        slipped(train, "u1", of=train.record().model_copy(update={"id": "shop/cancel/x"})),
        slipped(train, "o1", of=train.record().model_copy(update={"id": "retail/cancel/1"})),
    )
    sealed = slipped(person, "p1", purpose="live")
    sealed = sealed.model_copy(update={"labels": label_rollout(sealed).labels})
    record(app, sealed, owner=app.keys.of("rosa"))
    for file in app.settings.home.glob("keys.db*"):
        file.unlink()
    made = kintsugi("lessons", "make", "--env", "shop", "--count", "6", "--json")
    assert made.code == 0, made.err
    assert made.json["made"]["recorded"] == 2
    assert sum(made.json["made"].values()) == len(made.json["added"]) == 6
    assert made.json["left_out"] == {
        "the key of its person is not in the key store": 1,
        "its environment does not know the task": 1,
        "its task is of another environment": 1,
        "its task was changed since": 1,
        "it names no task, so it cannot be executed": 1,
        "its task is of the other split": 1,
        "policies are evaluated on its task": 2,
    }
    lines = kintsugi("lessons", "ls", "--json").json
    recorded = [line for line in lines if line["operator"] == "recorded"]
    assert sorted(line["rollout"] for line in recorded) == ["l1", "t1"]
    assert [line["task"] for line in lines] == made.json["added"]
    shown = kintsugi("tasks", "show", recorded[0]["task"], "--json").json
    assert shown["source_rollout"] == recorded[0]["rollout"]
    assert {"check": "lesson", "note": ""} in shown["verified"]
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_the_same_command_makes_the_same_lessons_and_adds_none_twice(
    home: Path, kintsugi: Kintsugi
) -> None:
    first, again = (
        kintsugi("lessons", "make", "--env", "shop", "--count", "8", "--json").json
        for _ in range(2)
    )
    assert first == again
    lines = kintsugi("lessons", "ls", "--json").json
    assert [line["task"] for line in lines] == first["added"]
    assert {line["operator"] for line in lines} == {"argument", "redundant", "swap", "missing"}
    for line in lines:
        assert line["env"] == "shop"
        assert (line["split"], line["state"], line["source"]) == ("train", "active", "operator")
        assert line["source_task"].startswith(f"shop/{line['capability']}/")
    assert kintsugi("lessons", "ls", "--env", "retail", "--json").json == []
    assert first["added"][0][:18] in kintsugi("lessons", "ls").out


def test_a_lesson_that_was_retired_is_not_made_again(home: Path, kintsugi: Kintsugi) -> None:
    arguments = ("lessons", "make", "--env", "shop", "--count", "4")
    first, second, *rest = kintsugi(*arguments, "--json").json["added"]
    shown = kintsugi("lessons", "show", first, "--json").json
    new = f"Look: {shown['reflection']}"
    edited = kintsugi("lessons", "edit", first, "--reflection", new, "--json").json["task"]
    assert kintsugi("tasks", "retire", second).code == 0
    again = kintsugi(*arguments)
    assert "2 lessons were retired and stay so" in again.err
    assert kintsugi(*arguments, "--json").json["retired"] == 2
    states = {line["task"]: line["state"] for line in kintsugi("lessons", "ls", "--json").json}
    retired = {first: "retired", second: "retired"}
    assert states == {**retired, **dict.fromkeys((*rest, edited), "active")}
    restored = kintsugi(*arguments, "--restore", "--json").json
    assert restored["retired"] == 0
    assert len(restored["rejected"]) == 1, "its edited form is there"
    states = {line["task"]: line["state"] for line in kintsugi("lessons", "ls", "--json").json}
    others = dict.fromkeys((second, *rest, edited), "active")
    assert states == {first: "retired", **others}


def test_a_lesson_is_shown_in_words_and_as_a_definition(home: Path, kintsugi: Kintsugi) -> None:
    made = kintsugi("lessons", "make", "--env", "shop", "--count", "1", "--json").json
    (task,) = made["added"]
    shown = kintsugi("lessons", "show", task[:20], "--json").json
    definition = TaskDefinition.model_validate_json(json.dumps(shown["definition"]))
    assert definition.lesson is not None
    assert shown["gold"].startswith(f"<reflect>{definition.lesson.reflection}</reflect>\n")
    text = kintsugi("lessons", "show", task).out
    for part in (definition.lesson.reflection, definition.prefix[0].text, "tool (error):"):
        assert part in " ".join(text.split()) or part in text
    added = kintsugi("tasks", "retire", task, "--json").json
    assert added["state"] == "retired"


def test_a_person_writes_a_reflection_anew(
    home: Path, kintsugi: Kintsugi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (old,) = kintsugi("lessons", "make", "--env", "shop", "--count", "1", "--json").json["added"]
    before = kintsugi("lessons", "show", old, "--json").json
    new = f"Look: {before['reflection']}"
    edited = kintsugi("lessons", "edit", old[:20], "--reflection", new, "--actor", "ada", "--json")
    assert (edited.code, edited.err) == (0, "")
    assert (edited.json["reflection"], edited.json["replaces"]) == (new, old)
    states = {line["task"]: line["state"] for line in kintsugi("lessons", "ls", "--json").json}
    assert states == {old: "retired", edited.json["task"]: "active"}
    events = len(kintsugi("log", "cat", "learning").lines)
    again = kintsugi("lessons", "edit", old, "--reflection", new, "--json")
    assert (again.code, again.json["task"]) == (0, edited.json["task"])
    file = tmp_path / "reflection.txt"
    file.write_text(f"{new}\n")
    assert kintsugi("lessons", "edit", edited.json["task"], "--file", file).code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(new))
    assert kintsugi("lessons", "edit", old, "--reflection", "-").code == 0
    assert len(kintsugi("log", "cat", "learning").lines) == events
    other = kintsugi("lessons", "edit", old, "--reflection", f"Other: {new}")
    assert (other.code, "is retired" in other.err) == (1, True)
    assert kintsugi("rebuild", "--json").json["equal"] is True


REFUSED: Final = {
    "It was wrong.": "does not name",
    "": "it is empty",
    "<reflect>It was wrong.</reflect>": "the tag <reflect>",
    '{"name": "get_order", "arguments": {}}': "the JSON of a call",
    "wrong " * 1000: "2,000 may be",
    "a\x00b order_id orderId": "NUL",
    "a\udc80b order_id orderId": "half of a surrogate pair",
}


def test_a_reflection_that_is_none_changes_nothing(home: Path, kintsugi: Kintsugi) -> None:
    (old,) = kintsugi("lessons", "make", "--env", "shop", "--count", "1", "--json").json["added"]
    for text, reason in REFUSED.items():
        result = kintsugi("lessons", "edit", old, "--reflection", text)
        assert (result.code, result.out) == (1, "")
        assert reason in result.err
    assert [line["state"] for line in kintsugi("lessons", "ls", "--json").json] == ["active"]


def test_an_edit_that_was_cut_off_is_completed_by_the_same_command(
    app: App, kintsugi: Kintsugi
) -> None:
    """On a broker, the second event may be lost: then both lessons are there."""
    (old,) = kintsugi("lessons", "make", "--env", "shop", "--count", "1", "--json").json["added"]
    shown = kintsugi("lessons", "show", old, "--json").json
    new = f"Look: {shown['reflection']}"
    whole = TaskDefinition.model_validate_json(json.dumps(shown["definition"]))
    assert whole.lesson is not None
    lesson = whole.lesson.model_copy(update={"reflection": new})
    edited = whole.model_copy(update={"lesson": lesson}).name_by_content()
    raw = RawDefinition("it", edited.model_dump_json().encode())
    (addition,) = Additions(lambda _: SHOP).examine([raw])
    assert not hasattr(addition, "reason"), addition
    target = task_buffer.Target("agent", "unknown", None)
    task_buffer.replace_task(app, Act("ada"), "lessons edit", target, addition, None)
    states = {line["task"]: line["state"] for line in kintsugi("lessons", "ls", "--json").json}
    assert states == {old: "active", edited.id: "active"}
    assert kintsugi("lessons", "edit", old, "--reflection", new).code == 0
    states = {line["task"]: line["state"] for line in kintsugi("lessons", "ls", "--json").json}
    assert states == {old: "retired", edited.id: "active"}


def test_lessons_for_tests_are_written_to_a_file_and_are_no_tasks(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    refused = kintsugi("lessons", "make", "--env", "shop", "--split", "test")
    assert (refused.code, "--out" in refused.err) == (2, True)
    file = tmp_path / "lessons.jsonl"
    made = kintsugi(
        "lessons", "make", "--env", "shop", "--split", "test", "--count", "4", "--out", file,
        "--json",
    )  # fmt: skip
    assert (made.code, made.json["added"], made.json["file"]) == (0, [], str(file))
    lessons = [TaskDefinition.model_validate_json(line) for line in file.read_text().splitlines()]
    assert {find_split(t.lesson.source) for t in lessons if t.lesson} == {"test"}
    assert kintsugi("lessons", "ls", "--json").json == []
    added = kintsugi("tasks", "add", file, "--json")
    assert added.code == 3
    assert {item["check"] for item in added.json["rejected"]} == {"contamination"}
    nowhere = kintsugi(
        "lessons", "make", "--env", "shop", "--count", "1", "--out", tmp_path / "a/b"
    )
    assert (nowhere.code, "cannot be written" in nowhere.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["make", "--env", "nowhere"], 1, "there is no environment"),
        (["make", "--env", "bfcl"], 1, "bfcl generates no tasks"),
        (["make", "--env", "shop", "--count", "0"], 2, "--count"),
        (["make"], 2, "--env"),
        (["show", "shop/="], 1, "no task was written"),
        (["edit", "shop/=", "--reflection", "x"], 1, "no task was written"),
        (["edit", "shop/="], 2, "give one of --reflection and --file"),
    ],
)
def test_wrong_input_is_a_sentence(
    home: Path, kintsugi: Kintsugi, arguments: list[str], code: int, reason: str
) -> None:
    result = kintsugi("lessons", *arguments)
    assert (result.code, result.out) == (code, "")
    assert reason in result.err
    assert "Traceback" not in result.err


def test_an_environment_whose_code_raises_is_a_sentence(
    home: Path, kintsugi: Kintsugi, tmp_path: Path
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "from tests.envs.mini import Mini\n\n\n"
        "class Broken(Mini):\n"
        '    name = "broken"\n\n'
        "    def generate(self, capability, seed):\n"
        '        raise RuntimeError("no words left")\n'
    )
    result = kintsugi("lessons", "make", "--env", file)
    assert (result.code, result.out) == (1, "")
    assert "raised RuntimeError: no words left" in result.err
    assert "Traceback" not in result.err


def test_a_task_without_a_lesson_is_none(home: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    file.write_text(SHOP.generate("cancel", 3).model_dump_json())
    (task,) = kintsugi("tasks", "add", file, "--json").json["added"]
    shown = kintsugi("lessons", "show", task)
    assert (shown.code, "has no lesson" in shown.err) == (1, True)


def test_sources_are_fresh_tasks_that_no_report_and_no_gate_draws() -> None:
    drawn = list(draw_sources(SHOP, "train", 3, 44))
    assert drawn == list(draw_sources(SHOP, "train", 3, 44))
    assert {task.capability for task in drawn} == set(SHOP.capabilities)
    for task in drawn:
        assert FIRST_SEED <= int(task.id.rpartition("/")[2]) <= LAST_SEED
        assert find_split(task.id) == "train"
