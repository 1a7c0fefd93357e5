"""Tasks as data in the tables: a body is kept where it hashes to the id, and a rebuild agrees."""

from typing import Any, Final

import pytest
from sqlalchemy import Engine

from consumers.methods.lessons.reads import read_lesson_tasks, read_lessons
from consumers.reads import learning, rollouts
from consumers.reads.explanation import explain
from consumers.rebuild import rebuild
from envs.shop.environment import Shop
from envs.task import TaskDefinition, read_body
from events.canonical import exact_json, sha256
from events.learning import OPERATOR, TaskProposed, TaskRejected, TaskRetired
from events.messages import Action
from tests.consumers.cycling import PATTERN, Leading, cycle_id, over, proposed, started

SHOP: Final = Shop()
TASK: Final = SHOP.generate("cancel", 7).name_by_content()
OTHER: Final = SHOP.generate("return", 7).name_by_content()


def added(definition: TaskDefinition = TASK, /, **changes: Any) -> TaskProposed:
    """A task that an operator adds for no pattern."""
    fields: dict[str, Any] = {
        "alias": "agent", "base": "base", "task": definition.record(), "pattern": OPERATOR,
        "text_by": "ada", "definition": definition.dump_body(),
    }  # fmt: skip
    return TaskProposed(**{**fields, **changes})


@pytest.fixture
def leading(engine: Engine) -> Leading:
    return Leading(engine)


def states(leading: Leading) -> dict[str, str]:
    """Task -> state, once a rebuild has agreed."""
    assert rebuild(leading.log, leading.engine).equal
    with leading.tables() as connection:
        assert rollouts.dead_letters(connection) == []
        return {line.task: line.state for line in learning.list_task_lines(connection)}


def body(leading: Leading, task: TaskDefinition) -> str | None:
    with leading.tables() as connection:
        return learning.read_task_body(connection, task.id)


def test_a_body_is_kept_once_and_gives_the_task_again(leading: Leading) -> None:
    leading.say(added(), "one")
    leading.say(added(alias="other"), "two")
    leading.say(added(OTHER), "three")
    text = body(leading, TASK)
    assert text is not None
    assert read_body(TASK.id, text) == TASK
    with leading.tables() as connection:
        lines = learning.list_task_lines(connection)
        assert [(line.alias, line.task, line.source) for line in lines] == [
            ("agent", TASK.id, "operator"), ("other", TASK.id, "operator"),
            ("agent", OTHER.id, "operator"),
        ]  # fmt: skip
        assert explain(connection, TASK.id).said == "added by ada; 0 checks passed"
    assert states(leading) == {TASK.id: "active", OTHER.id: "active"}


def test_a_body_that_says_lesson_elsewhere_has_none(leading: Leading) -> None:
    enrolled = Action(name="enroll", arguments={"lesson": {"id": 1}})
    criteria = TASK.criteria.model_copy(update={"gold_actions": (enrolled,)})
    task = TASK.model_copy(update={"criteria": criteria}).name_by_content()
    leading.say(added(task), "one")
    assert states(leading) == {task.id: "active"}
    with leading.tables() as connection:
        assert read_lessons(connection) == {}


@pytest.mark.parametrize("lesson", ["a word", ["recorded"], {"operator": 7}])
def test_a_lesson_in_a_form_of_another_version_is_none(leading: Leading, lesson: object) -> None:
    definition = {**TASK.dump_body(), "lesson": lesson}
    record = TASK.record().model_copy(update={"id": f"shop/={sha256(exact_json(definition))}"})
    leading.say(added(definition=definition, task=record), "one")
    assert states(leading) == {record.id: "active"}
    with leading.tables() as connection:
        assert read_lessons(connection) == {}
        assert read_lesson_tasks(connection, "agent") == set()


@pytest.mark.parametrize(
    "wrong",
    [
        {"definition": OTHER.dump_body()},
        {"definition": None},
        {"definition": TASK.dump_body(), "task": TASK.record().model_copy(update={"id": "shop/1"})},
    ],
    ids=["another", "none", "of a generated id"],
)
def test_what_does_not_hash_to_its_id_is_a_rejected_task(
    leading: Leading, wrong: dict[str, Any]
) -> None:
    data = added(**wrong)
    leading.say(data, "wrong")
    assert states(leading) == {data.task.id: "rejected"}
    assert body(leading, TASK) is None
    with leading.tables() as connection:
        assert learning.patterns_of(connection, "agent") == {}
        assert learning.read_inactive_tasks(connection, "agent") == {data.task.id: "rejected"}
        assert explain(connection, data.task.id).said.startswith("rejected; ")
    leading.say(added(), "right")
    assert states(leading)[TASK.id] == "active"


def test_a_wrong_body_does_no_harm_to_a_task_whose_body_is_known(leading: Leading) -> None:
    leading.say(added(), "right")
    leading.say(added(definition=OTHER.dump_body()), "wrong")
    leading.say(added(alias="other", definition=None), "without")
    assert states(leading) == {TASK.id: "active"}
    with leading.tables() as connection:
        assert learning.patterns_of(connection, "other") == {TASK.id: OPERATOR}


def test_a_retired_task_comes_back_when_an_operator_adds_it_and_not_when_a_cycle_does(
    leading: Leading,
) -> None:
    leading.all(started(), proposed("shop/cancel/1"), added())
    for task in ("shop/cancel/1", TASK.id):
        leading.all(TaskRetired(alias="agent", task=task, reason="too easy"))
    leading.all(proposed("shop/cancel/1"))
    assert states(leading) == {"shop/cancel/1": "retired", TASK.id: "retired"}
    with leading.tables() as connection:
        assert explain(connection, TASK.id).said.endswith("retired: too easy")
    leading.all(added())
    assert states(leading) == {"shop/cancel/1": "retired", TASK.id: "active"}


def test_a_task_that_cannot_be_played_is_rejected_with_or_without_a_cycle(leading: Leading) -> None:
    leading.all(started(), added(), added(OTHER))
    for task, cycle in ((TASK, cycle_id()), (OTHER, None)):
        leading.all(
            TaskRejected(
                cycle=cycle, alias="agent", base="base", pattern=OPERATOR, check="schema",
                reason="gone", task=task.id,
            )
        )  # fmt: skip
    assert states(leading) == {TASK.id: "rejected", OTHER.id: "rejected"}
    with leading.tables() as connection:
        assert learning.rejections_of(connection, cycle_id()) == []
        (row,) = learning.cycles(connection)
    assert row.rejected == 0, "it is no task that the cycle wrote in vain"


def test_a_cycle_may_write_a_task_by_content(leading: Leading) -> None:
    leading.all(started(), added(pattern=PATTERN, cycle=cycle_id(), mode="explore"))
    leading.all(over(), added(OTHER, pattern=PATTERN, cycle=cycle_id(), mode="explore"))
    assert states(leading) == {TASK.id: "active"}, "a cycle that is over writes nothing"
    assert body(leading, OTHER) is None
    with leading.tables() as connection:
        (line,) = learning.list_task_lines(connection, "agent")
    assert (line.source, line.patterns) == ("cycle", (PATTERN,))
