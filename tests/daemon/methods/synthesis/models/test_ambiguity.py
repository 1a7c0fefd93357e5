"""Requests that tell which of several things is meant, and requests that do not."""

from collections.abc import Iterator

from daemon.methods.synthesis.models.ambiguity import find_ambiguity
from daemon.methods.synthesis.models.exploration import SandboxCall
from daemon.proposer.candidate import FIRST_SEED
from envs.registry import open_environment
from envs.task import TaskDefinition

RETAIL = open_environment("retail")


def list_returns() -> Iterator[TaskDefinition]:
    """Generated tasks whose customer returns some items of an order, by their names, and keeps
    others."""
    for number in range(24):
        task = RETAIL.generate("return", FIRST_SEED + number)
        order = next(call.result for call in play_gold(task) if "get_order" in call.action.name)
        returned = (task.criteria.gold_actions or ())[-1].arguments["item_ids"]
        if order.count('"name"') > len(returned):
            yield task


def play_gold(task: TaskDefinition) -> list[SandboxCall]:
    """The gold calls with their answers."""
    tools = RETAIL.open_tools(task, RETAIL.reset(task))
    return [
        SandboxCall(action, tools.call(action.name, action.arguments, action.requestor).content)
        for action in task.criteria.gold_actions or ()
    ]


def find(task: TaskDefinition) -> str | None:
    """What the request of a task leaves open."""
    return find_ambiguity(RETAIL, task, play_gold(task), task.scenario.known_info)


def test_an_item_that_is_named_in_its_record_is_told_from_the_others_of_its_order() -> None:
    tasks = list(list_returns())
    assert len(tasks) > 4
    assert [find(task) for task in tasks] == [None] * len(tasks)


def test_an_item_that_is_not_named_stays_open() -> None:
    """Who the customer is tells no item from another, though their records have it."""
    open_values = []
    for task in list_returns():
        order = (task.criteria.gold_actions or ())[-1].arguments["order_id"]
        reason = f"I want to return an item of order {order} that has the address of my zip code."
        scenario = task.scenario.model_copy(update={"reason_for_call": reason})
        vague = task.model_copy(update={"scenario": scenario, "script": None})
        open_values.append(find(vague))
    assert len(open_values) > 4
    assert all("does not tell whether" in (problem or "") for problem in open_values)
