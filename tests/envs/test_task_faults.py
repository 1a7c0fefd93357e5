"""Faults of tasks: what the rules name, and which tasks they leave alone."""

from itertools import islice
from pathlib import Path

import pytest

from envs.attribution.task_faults import TaskFault, find_task_fault
from envs.registry import open_environment
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.messages import Action
from tests.envs.faulty_task import TASK_FAULTS, plant_task_fault

SHOP = Shop()
CANCEL = SHOP.generate("cancel", 0)


def with_gold(
    task: TaskDefinition, *actions: Action, outputs: tuple[str, ...] = ()
) -> TaskDefinition:
    """The task with other gold actions."""
    changes = {"gold_actions": actions, "outputs": outputs or task.criteria.outputs}
    return task.model_copy(update={"criteria": task.criteria.model_copy(update=changes)})


def fault_of(task: TaskDefinition) -> TaskFault:
    """The fault of a task of the shop that has one."""
    fault = find_task_fault(SHOP, task)
    assert fault is not None
    return fault


@pytest.mark.parametrize("name", ["shop", "retail", "airline", "telecom", "toolsandbox"])
def test_no_task_that_an_environment_generates_has_a_fault(name: str) -> None:
    environment = open_environment(name)
    kinds = list(environment.capabilities)
    for seed in range(2000, 2000 + 60 // len(kinds)):
        for kind in kinds:
            task = environment.generate(kind, seed)
            assert find_task_fault(environment, task) is None, task.id
            other = environment.rephrase(task, seed)
            assert other is None or find_task_fault(environment, other) is None, other.id


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("shop", {"other_value": 0.9, "other_text": 0.8, "silent": 0.15, "refused": 1.0}),
        ("retail", {"other_value": 0.9, "other_text": 0.9, "silent": 0.25, "refused": 1.0}),
    ],
)
def test_planted_faults_of_tasks_are_named(name: str, rates: dict[str, float]) -> None:
    environment = open_environment(name)
    tasks = list(islice(environment.tasks(), 50))
    for fault in TASK_FAULTS:
        planted = [plant_task_fault(environment, task, fault, seed=1) for task in tasks]
        faulty = [task for task in planted if task is not None]
        named = sum(find_task_fault(environment, task) is not None for task in faulty)
        assert len(faulty) >= 25, fault
        assert named >= rates[fault] * len(faulty), (fault, named)


def test_gold_that_a_tool_refuses_is_a_fault() -> None:
    gold = CANCEL.criteria.gold_actions or ()
    missing = Action(name="cancel_order", arguments={"order_id": "O999"})
    fault = fault_of(with_gold(CANCEL, *gold[:-1], missing))
    assert fault.rule == "gold"
    assert fault.reason.startswith("gold action cancel_order is refused")


def test_gold_that_writes_and_changes_nothing_is_a_fault() -> None:
    retail = open_environment("retail")
    task = retail.generate("user_address", 1)
    gold = task.criteria.gold_actions or ()
    reset = retail.reset(task)
    user = reset["users"][str(gold[-1].arguments["user_id"])]
    same = Action(name=gold[-1].name, arguments={**gold[-1].arguments, **user["address"]})
    fault = find_task_fault(retail, with_gold(task, *gold[:-1], same))
    assert fault is not None
    assert fault.reason == "the gold actions write (modify_user_address) and change nothing"


def test_a_user_who_names_another_order_than_gold_contradicts_it() -> None:
    faulty = plant_task_fault(SHOP, CANCEL, "other_text", 0)
    assert faulty is not None
    other = next(word for word in faulty.scenario.reason_for_call.split() if word.startswith("O"))
    fault = fault_of(faulty)
    assert fault.rule == "contradiction"
    assert other.strip(".").lower() in fault.reason
    assert "'O50'" in fault.reason
    assert fault.summary.startswith("the task's fault (contradiction): ")


def test_naming_what_gold_leaves_out_is_no_contradiction() -> None:
    task = SHOP.generate("all_but", 0)
    named = "kettle"
    assert named in task.scenario.reason_for_call
    written = [action.arguments for action in task.criteria.gold_actions or ()]
    assert not any(named in arguments.values() for arguments in written)
    assert find_task_fault(SHOP, task) is None


def test_a_value_that_nobody_can_know_is_a_fault() -> None:
    task = SHOP.generate("address", 0)
    gold = task.criteria.gold_actions or ()
    lost = gold[-1].model_copy(
        update={"arguments": {**gold[-1].arguments, "street": "No Street 9"}}
    )
    fault = fault_of(with_gold(task, *gold[:-1], lost))
    assert fault.rule in ("provenance", "contradiction")
    assert "'No Street 9'" in fault.reason


def test_an_output_that_no_tool_answers_is_a_fault() -> None:
    gold = CANCEL.criteria.gold_actions or ()
    fault = fault_of(with_gold(CANCEL, *gold, outputs=("zebra",)))
    assert (fault.rule, fault.reason) == ("outputs", "no tool answers 'zebra'")


def test_nothing_is_told_of_a_task_without_gold_actions() -> None:
    criteria = CANCEL.criteria.model_copy(update={"gold_actions": None, "outputs": ("zebra",)})
    assert find_task_fault(SHOP, CANCEL.model_copy(update={"criteria": criteria})) is None


def test_what_people_leave_out_of_the_gold_of_a_loaded_task_is_no_fault() -> None:
    task = SHOP.generate("cancel", 0)
    gold = task.criteria.gold_actions or ()
    refused = Action(name="get_order", arguments={"order_id": "O999"})
    loaded = with_gold(task, refused, *gold[1:], outputs=("41.64",))
    loaded = loaded.model_copy(update={"split": "base"})
    assert find_task_fault(SHOP, loaded) is None
    fault = fault_of(with_gold(loaded, refused, *gold[1:], outputs=("a zebra",)))
    assert fault.reason == "nothing has the words of the output 'a zebra'"
    assert (
        fault_of(
            with_gold(loaded, refused, refused.model_copy(update={"name": "cancel_order"}))
        ).rule
        == "gold"
    )


def test_a_task_whose_reward_is_of_no_state_may_change_none() -> None:
    """The classes of BFCL keep their state elsewhere than in tables."""
    refused = Action(name="cancel_order", arguments={})
    task = with_gold(CANCEL, refused).model_copy(update={"split": "base"})
    assert fault_of(task).rule == "gold"
    criteria = task.criteria.model_copy(update={"reward_basis": ("TURNS", "ABSTENTION")})
    assert find_task_fault(SHOP, task.model_copy(update={"criteria": criteria})) is None


@pytest.mark.long
@pytest.mark.benchmarks
def test_one_real_task_has_a_fault_and_it_is_one(benchmarks: Path) -> None:
    """Its only gold action, an exchange, is refused for the balance of the gift card."""
    environment = open_environment("retail", benchmarks=benchmarks)
    faulty = [t.id for t in environment.tasks("base") if find_task_fault(environment, t)]
    assert faulty == ["retail/105"]
