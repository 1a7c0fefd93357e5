"""Lists whose order has no meaning: the same payment, and pairs that stay pairs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.catalog import ToolCatalog, restore_catalog, sort_lists
from envs.database import Database
from envs.environment import Environment
from envs.evidence.user_faults import is_lost
from envs.grading import grade
from envs.registry import open_environment
from envs.task import Rules, TaskDefinition
from envs.tools import Toolset, write
from events.canonical import comparable_json
from events.messages import Action, Message, ToolCall
from tests.envs.mini import Mini, called, said, task

Change = Callable[[str, dict[str, Any]], dict[str, Any]]
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))


def with_rules(task: TaskDefinition) -> TaskDefinition:
    """The task as one whose verdict keeps rules."""
    return task.model_copy(update={"criteria": task.criteria.model_copy(update={"rules": Rules()})})


def play(environment: Environment, task: TaskDefinition, change: Change) -> list[Message]:
    """The transcript of an agent that makes the gold calls with changed arguments."""
    tools = environment.open_tools(task, environment.reset(task))
    messages = [Message(role="user", content="Please.")]
    for number, action in enumerate(task.criteria.gold_actions or ()):
        arguments = change(action.name, dict(action.arguments))
        answer = tools.call(action.name, arguments, action.requestor)
        call = ToolCall(name=action.name, arguments=arguments, id=f"c{number}")
        messages += [
            Message(role=action.requestor, content=None, tool_calls=(call,)),
            Message(role="tool", content=answer.content, tool_call_id=call.id, error=answer.error),
        ]
    return [*messages, said(" ".join(task.criteria.outputs))]


def turn(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with every list from its end."""
    return {
        key: value[::-1] if isinstance(value, list) else value for key, value in arguments.items()
    }


def judge_state(environment: Environment, task: TaskDefinition, change: Change) -> float | None:
    """The part DB of an agent that makes the gold calls with changed arguments."""
    return grade(environment, task, play(environment, task, change), "agent_stop").parts["DB"]


@pytest.mark.parametrize("seed", range(20))
def test_a_payment_over_two_cards_in_the_other_order_is_the_same_payment(seed: int) -> None:
    airline = open_environment("airline")
    loaded = airline.generate("split_payment", seed)
    loaded = loaded.model_copy(
        update={"criteria": loaded.criteria.model_copy(update={"rules": None})}
    )

    def swap(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if "payment_methods" not in arguments:
            return arguments
        return {**arguments, "payment_methods": arguments["payment_methods"][::-1]}

    assert judge_state(airline, with_rules(loaded), swap) == 1.0
    assert judge_state(airline, loaded, swap) == 0.0, "a benchmark's verdict stays its own"

    def exchange_amounts(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if "payment_methods" not in arguments:
            return arguments
        first, second = arguments["payment_methods"]
        amounts = {**first, "amount": second["amount"]}, {**second, "amount": first["amount"]}
        return {**arguments, "payment_methods": list(amounts)}

    assert judge_state(airline, with_rules(loaded), exchange_amounts) == 0.0


@pytest.mark.parametrize("name", ["airline", "retail", "telecom", "shop"])
def test_no_order_of_lists_changes_the_state_of_a_generated_task(name: str) -> None:
    environment = open_environment(name)
    for capability in environment.capabilities:
        for seed in range(3):
            task = with_rules(environment.generate(capability, seed))
            if "DB" in task.criteria.reward_basis:
                assert judge_state(environment, task, turn) == 1.0, task.id


def find_replacements(tables: Database) -> tuple[str, str, list[tuple[str, str]]]:
    """Return a pending order, its user, and two of its items with other variants of them."""
    for order_id, order in tables["orders"].items():
        pairs = {
            item["item_id"]: variant
            for item in order["items"]
            for variant, offer in tables["products"][item["product_id"]]["variants"].items()
            if offer["available"] and variant != item["item_id"]
        }
        if order["status"] == "pending" and len(pairs) > 1:
            return order_id, order["user_id"], list(pairs.items())[:2]
    raise AssertionError("no pending order has two items that can be replaced")


def test_items_that_are_modified_in_another_order_are_the_same_change() -> None:
    retail = open_environment("retail")
    task = retail.generate("modify_items", 0)
    order_id, user_id, pairs = find_replacements(retail.reset(task))
    old, new = map(list, zip(*pairs, strict=True))
    method = next(
        key
        for key, held in retail.reset(task)["users"][user_id]["payment_methods"].items()
        if held["source"] != "gift_card"
    )
    arguments = {
        "order_id": order_id,
        "item_ids": old,
        "new_item_ids": new,
        "payment_method_id": method,
    }
    gold = (Action(name="modify_pending_order_items", arguments=arguments),)
    criteria = task.criteria.model_copy(update={"gold_actions": gold, "rules": None})
    loaded = task.model_copy(update={"criteria": criteria})
    assert judge_state(retail, loaded, turn) == 0.0, "tau2-bench takes the price of the last"
    assert judge_state(retail, with_rules(loaded), turn) == 1.0


class DeskTools(Toolset):
    """Writes that fill lists."""

    @write
    def pay(self, card: str, amount: float) -> str:
        """Note a payment."""
        self.database.edit("desk", "d")["payments"].append([card, amount])
        return "paid"

    @write
    def seat(self, seats: list[int], guests: list[str]) -> str:
        """Seat guests, each on the seat at the same place of the other list."""
        self.database.edit("desk", "d")["tables"][0].update(seats=seats, guests=guests)
        return "seated"


class Desk(Mini):
    """An environment of somebody's own that declares its lists."""

    name = "desk"
    toolset = DeskTools  # type: ignore[assignment]
    fields = {"desk": (("payments",),), "desk/tables": (("seats", "guests"),)}

    @property
    def catalog(self) -> ToolCatalog:
        """The tools and fields, with the lists that have no order."""
        return replace(super().catalog, unordered_fields=self.fields)

    def pristine(self, task: TaskDefinition) -> Database:
        """A desk at which nobody sits."""
        return Database(
            {"desk": {"d": {"payments": [], "tables": [{"seats": [0] * 3, "guests": [""] * 3}]}}}
        )


def seat(seats: Sequence[int], guests: Sequence[str]) -> Message:
    """A call that seats guests."""
    return called("seat", seats=list(seats), guests=list(guests))


def desk_task(rules: Rules | None = None) -> TaskDefinition:
    """A task in which two cards pay and three guests are seated."""
    gold = (
        Action(name="pay", arguments={"card": "a", "amount": 250}),
        Action(name="pay", arguments={"card": "b", "amount": 10.5}),
        Action(name="seat", arguments={"seats": [1, 2, 3], "guests": ["x", "y", "z"]}),
    )
    return task(gold_actions=gold, outputs=(), rules=rules)


@settings(max_examples=50)
@given(st.permutations([(1, "x"), (2, "y"), (3, "z")]), st.booleans())
def test_fields_of_a_state_are_compared_as_they_are_declared(
    pairs: list[tuple[int, str]], first: bool
) -> None:
    payments = [called("pay", card="a", amount=250.0), called("pay", card="b", amount=10.5)]
    seats, guests = zip(*pairs, strict=True)
    messages = [*(payments if first else payments[::-1]), seat(seats, guests)]
    verdict = grade(Desk(), desk_task(Rules()), messages, "user_stop")
    assert verdict.difference == ()
    assert not is_lost(Desk(), desk_task(Rules()), messages)
    crossed = [*payments, seat(seats, guests[1:] + guests[:1])]
    assert grade(Desk(), desk_task(Rules()), crossed, "user_stop").difference
    assert is_lost(Desk(), desk_task(Rules()), crossed)


def test_without_rules_or_a_declaration_order_counts() -> None:
    turned = [
        called("pay", card="b", amount=10.5),
        called("pay", card="a", amount=250),
        seat([1, 2, 3], ["x", "y", "z"]),
    ]
    assert grade(Desk(), desk_task(), turned, "user_stop").difference
    desk = Desk()
    desk.fields = {}
    assert grade(desk, desk_task(Rules()), turned, "user_stop").difference
    desk.fields = {"desk": (("payments",),)}
    assert not grade(desk, desk_task(Rules()), turned, "user_stop").difference


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6), st.randoms())
def test_sorted_lists_are_equal_exactly_for_the_same_pairs(
    pairs: list[tuple[Any, Any]], chance: Any
) -> None:
    def arrange(rows: Sequence[tuple[Any, Any]]) -> str:
        left, right = zip(*rows, strict=True)
        fields = {"left": list(left), "right": list(right), "other": [2, 1]}
        return comparable_json(sort_lists(fields, [("left", "right")]))

    shuffled = chance.sample(pairs, len(pairs))
    assert arrange(shuffled) == arrange(pairs)
    crossed = [(left, right) for (left, _), (_, right) in zip(pairs, shuffled, strict=True)]
    same = sorted(map(comparable_json, crossed)) == sorted(map(comparable_json, pairs))
    assert (arrange(crossed) == arrange(pairs)) == same


def test_events_carry_the_groups_of_a_declaration() -> None:
    declared = replace(
        Mini().catalog,
        unordered={"one": ("a", "b"), "two": (("c",), ("d", "e"))},
        guesses_order=False,
    )
    roles = declared.roles
    assert roles.unordered == {"one": ("a", "b")}
    assert roles.unordered_groups == {"two": (("c",), ("d", "e"))}
    restored = restore_catalog("own", roles)
    for tool, arguments, arranged in (
        ("one", {"a": [2, 1], "b": [3, 4]}, {"a": [1, 2], "b": [4, 3]}),
        ("two", {"c": [2, 1], "d": [2, 1], "e": [3, 4]}, {"c": [1, 2], "d": [1, 2], "e": [4, 3]}),
        ("three", {"a": [2, 1]}, {"a": [2, 1]}),
    ):
        assert restored.arrange(tool, arguments) == arranged == declared.arrange(tool, arguments)
