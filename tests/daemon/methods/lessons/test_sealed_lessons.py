"""Lessons that are made of a person's session: sealed, practised by nobody else, and retired."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from consumers.diagnosis.labels import label_rollout
from consumers.reads import learning
from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.engine.chat import Chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.maintenance import erasure
from daemon.solver import journal
from daemon.solver.journal import read_definitions
from daemon.solver.sampling.seals import Seals
from daemon.solver.spec import digest
from envs.episode import Episode, Party, PrefixMismatch, check_prefix
from envs.evaluation import EnvironmentFailure, environment_code
from envs.task import TaskDefinition
from events.jobs import JobSpec
from events.learning import JobRequested, TaskProposed
from events.messages import Message
from events.privacy.sealing import Key
from events.rollouts import RolloutContent, RolloutEnded
from producers.simulation import Provenance, build_rollout_event
from tests.daemon.conftest import Kintsugi
from tests.daemon.gateway.test_erasing import showing
from tests.daemon.methods.lessons.test_lessons import SHOP, draw, slipped
from tests.daemon.repair.test_background import record
from tests.daemon.slips import attempt_slip
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
    name = retired[0]["task"]
    for command in (
        ("lessons", "show", name),
        ("tasks", "show", name),
        ("lessons", "edit", name, "--reflection", "Look."),
    ):
        refused = kintsugi(*command)
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


def run_job(app: App, kintsugi: Kintsugi, lessons: list[str]) -> None:
    """A job of the real learner over these lessons and tasks of nobody's."""
    drawn = [SHOP.generate("cancel", 2**28 + number).id for number in range(4)]
    pools: list[dict[str, Any]] = [
        {"name": "target", "tasks": drawn[:2], "references": drawn[2:]},
        {"name": "l", "tasks": lessons[:2], "references": lessons[2:], "reward": "both"},
    ]
    spec = {
        "job": "j", "base": "tiny", "checkpoint": str(CHECKPOINT), "environment": "shop",
        "pools": pools,
        "sampler": {"groups": 4, "size": 2, "rollouts": 16, "max_tokens": 24},
        "warm_start": {"mode": "always"}, "seed": 3,
    }  # fmt: skip
    data = JobRequested(
        job="j", alias="agent", base="tiny", spec=JobSpec.model_validate(spec), minutes=10
    )
    Decisions(app).take(data, "j", cause="somebody")
    while True:
        assert kintsugi("work", "--once").code == 0
        (job,) = kintsugi("jobs", "ls", "--json").json
        if job["outcome"] is not None:
            break
        time.sleep(0.5)
    assert job["outcome"] == "trained", job["reason"]


@pytest.mark.processes
def test_a_job_practised_a_persons_lesson_and_nothing_of_it_is_readable_afterwards(
    app: App, home: Path, kintsugi: Kintsugi
) -> None:
    key = record_person(app, *TRAIN)
    lessons = make(kintsugi, count=4)["added"]
    run_job(app, kintsugi, lessons)
    folder = home / "jobs" / "j" / "out"
    stored = [
        rollout
        for line in (folder / "rollouts.jsonl").read_bytes().splitlines()[1:]
        for rollout in json.loads(line)
    ]
    assert set(lessons) <= {rollout["task"] for rollout in stored}
    for rollout in stored:
        assert (rollout["task"] in lessons) == ("sealed" in rollout) == (not rollout["turns"])
    words = [read_tokens(kintsugi, task) for task in lessons]
    seals = Seals(read_definitions(folder), {key.id: key})
    with app.reading() as connection:
        job = learning.job(connection, "j")
    assert job is not None
    batches, _ = journal.read(folder / "rollouts.jsonl", digest(job.spec))
    opened = [rollout for batch in batches for rollout in seals.open(batch)]
    prompts = [",".join(map(str, turn.prompt_ids)) for item in opened for turn in item.turns]
    assert all(any(text in prompt for prompt in prompts) for text in words), "what is searched"
    assert showing(home, MARK) == []
    assert showing(home, *words) == []
    trained = [
        line["data"]
        for line in kintsugi("log", "cat", "rollouts", "--json").lines
        if line["data"].get("purpose") == "train" and line["data"]["task"]["id"] in lessons
    ]
    assert trained
    assert {(data["task"]["instruction"], data.get("content")) for data in trained} == {
        (None, None)
    }
    done = kintsugi("erase", "--person", ROSA, "--yes", "--json").json
    assert done["lessons"] == 4
    assert [adapter["because"] for adapter in done["adapters"]] == [["lesson"]]
    assert showing(home, MARK, ROSA) == []
    assert kintsugi("work", "--once").code == 0
    assert kintsugi("rebuild", "--json").json["equal"] is True
    assert kintsugi("log", "verify", "--json").json["ok"] is True


def read_tokens(kintsugi: Kintsugi, task: str) -> str:
    """The end of a lesson's prefix as token ids, as a journal in the open would have them."""
    definition = kintsugi("lessons", "show", task, "--json").json["definition"]
    whole = TaskDefinition.model_validate_json(json.dumps(definition))
    view = Episode(SHOP, whole).view(Party.AGENT)
    ids = Chat(CHECKPOINT).prompt(view, SHOP.select_schemas(whole, view))
    return ",".join(map(str, ids[-40:]))


def test_what_is_written_about_a_persons_task_quotes_nothing_of_it(
    app: App, kintsugi: Kintsugi
) -> None:
    record_person(app, TRAIN[0])
    (name,) = make(kintsugi)["added"]
    definition = kintsugi("lessons", "show", name, "--json").json["definition"]
    task = TaskDefinition.model_validate_json(json.dumps(definition))
    provenance = Provenance("agent", "tiny", "tiny", "probe")
    event = build_rollout_event(attempt_slip(task), SHOP, provenance, "r")
    assert (event.content, event.reason) == (None, None)
    assert MARK not in event.model_dump_json()

    answered = next(n for n, message in enumerate(task.prefix) if message.role == "tool")
    changed = task.prefix[answered].model_copy(update={"content": f"{MARK} is there"})
    prefix = (*task.prefix[:answered], changed, *task.prefix[answered + 1 :])
    for salt, quoted in ((task.salt, False), (None, True)):
        other = task.model_copy(update={"prefix": prefix, "salt": salt})
        with pytest.raises(PrefixMismatch) as mismatch:
            check_prefix(SHOP, other)
        with pytest.raises(EnvironmentFailure) as failure, environment_code(SHOP, "here", other):
            raise KeyError(MARK)
        for caught in (mismatch, failure):
            assert (MARK in str(caught.value)) == quoted
