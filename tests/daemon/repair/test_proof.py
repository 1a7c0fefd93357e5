"""What replays prove: each edit, pairs of them, and what cannot be proven."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from consumers.diagnosis.detectors import Diagnosis, diagnose
from consumers.diagnosis.facts import Facts
from daemon.repair.proof import prove
from daemon.repair.search import RepairSearch
from envs.catalog import catalog
from envs.registry import open_environment
from events.learning import RepairEdit, RepairSearched
from events.messages import Action, Message
from events.rollouts import RolloutContent, RolloutEnded
from producers.importers.importer import read_rollouts
from producers.importers.records import Rejection
from tests.daemon.repair.shop import SHOP, Write, failure, gold

PAYMENT = SHOP.task("shop/payment/0")
TWO = SHOP.task("shop/two_writes/0")
EXCHANGE = SHOP.task("shop/exchange/0")
RETURN = SHOP.task("shop/return/0")
REFUSE = SHOP.task("shop/ineligible/0")
QUESTION = SHOP.task("shop/question/0")

REFUSAL = "I cannot change the payment."


def proven(data: RolloutEnded, task: Any) -> RepairSearched:
    return prove(SHOP, task, data)


def labels(result: RepairSearched) -> tuple[str, str | None, str | None]:
    return result.outcome, result.category, result.pivot


def operations(result: RepairSearched) -> list[tuple[str, str]]:
    return [(edit.operation, edit.tool) for edit in result.edits]


def pending(task: Any, without: str = "") -> str:
    """Another order that can be changed."""
    orders = SHOP.reset(task)["orders"]
    return next(
        key for key, order in orders.items() if order["status"] == "pending" and key != without
    )


def test_a_write_too_many_is_left_out() -> None:
    extra: Write = ("cancel_order", {"order_id": pending(REFUSE)})
    result = proven(failure(REFUSE, [extra], ["Sorry not possible."]), REFUSE)
    assert labels(result) == ("repaired", "policy_violation", "*")
    assert result.edits == (RepairEdit(operation="drop", turn=3, call=1, tool="cancel_order"),)


def test_a_write_gets_the_arguments_of_gold() -> None:
    (payment, (address, where)) = gold(TWO)
    wrong = (address, {**where, "street": "Nowhere"})
    result = proven(failure(TWO, [payment, wrong]), TWO)
    assert labels(result) == ("repaired", "incorrect_arguments", "modify_address")
    (edit,) = result.edits
    assert (edit.operation, edit.arguments, edit.expected) == (
        "arguments", ("street",), "modify_address",
    )  # fmt: skip
    assert "Nowhere" not in result.model_dump_json(), "no value is written down"


def test_a_selection_that_differs_is_a_wrong_item() -> None:
    ((name, arguments),) = gold(EXCHANGE)
    order = SHOP.reset(EXCHANGE)
    stock = order["products"][arguments["item"]]["stock"]
    other = next(c for c, count in stock.items() if count and c != arguments["colour"])
    result = proven(failure(EXCHANGE, [(name, {**arguments, "colour": other})]), EXCHANGE)
    assert labels(result) == ("repaired", "wrong_item_selection", "exchange_item")


def test_a_refused_selection_is_an_incorrect_argument() -> None:
    ((name, arguments),) = gold(EXCHANGE)
    result = proven(failure(EXCHANGE, [(name, {**arguments, "colour": "no"})]), EXCHANGE)
    assert labels(result) == ("repaired", "incorrect_arguments", "exchange_item")


def test_an_accepted_write_is_changed_rather_than_a_refused_one() -> None:
    ((name, arguments),) = gold(EXCHANGE)
    stock = SHOP.reset(EXCHANGE)["products"][arguments["item"]]["stock"]
    other = next(c for c, count in stock.items() if count and c != arguments["colour"])
    calls = [(name, {**arguments, "colour": colour}) for colour in ("no", other)]
    result = proven(failure(EXCHANGE, calls), EXCHANGE)
    assert [(edit.operation, edit.turn) for edit in result.edits] == [("arguments", 5)]
    assert result.category == "wrong_item_selection"


def test_the_fewest_arguments_are_changed() -> None:
    """Two gold writes of one tool are missing; the agent's differs from one in less."""
    order = gold(TWO)[0][1]["order_id"]
    elsewhere = pending(TWO, order)
    first = Action(name="modify_address", arguments={"order_id": elsewhere, "street": "Aldgate"})
    second = Action(name="modify_address", arguments={"order_id": order, "street": "Moorgate"})
    criteria = TWO.criteria.model_copy(update={"gold_actions": (first, second)})
    task = TWO.model_copy(update={"criteria": criteria})
    wrong: Write = ("modify_address", {"order_id": order, "street": "Nowhere"})
    result = proven(failure(task, [wrong]), task)
    assert [(edit.operation, edit.gold) for edit in result.edits] == [
        ("arguments", 1), ("insert", 0),
    ]  # fmt: skip
    assert labels(result) == ("repaired", "incorrect_arguments", "modify_address")


def test_a_write_that_stands_for_its_own_tool_is_given_to_no_other() -> None:
    """Its arguments are mended, and the other gold write is added."""
    ((payment, _), (address, where)) = gold(TWO)
    result = proven(failure(TWO, [(address, {**where, "street": "Nowhere"})]), TWO)
    assert ("tool", address) not in operations(result)
    assert ("insert", payment) in operations(result)


def test_a_write_on_another_record_is_a_wrong_entity() -> None:
    (payment, (address, where)) = gold(TWO)
    wrong = (address, {**where, "order_id": pending(TWO, where["order_id"])})
    result = proven(failure(TWO, [payment, wrong]), TWO)
    assert labels(result) == ("repaired", "wrong_entity", "modify_address")
    assert [edit.arguments for edit in result.edits] == [("order_id",)]


def test_another_tool_on_the_record_is_a_wrong_tool() -> None:
    order = gold(PAYMENT)[0][1]["order_id"]
    result = proven(failure(PAYMENT, [("cancel_order", {"order_id": order})]), PAYMENT)
    assert labels(result) == ("repaired", "wrong_tool", "modify_payment")
    assert [(edit.tool, edit.expected) for edit in result.edits] == [
        ("cancel_order", "modify_payment")
    ]


@pytest.mark.parametrize(
    ("says", "category"),
    [
        (["Done."], "missing_write_action"),
        ([REFUSAL, "Done."], "over_cautious"),
        (["Done.", "Shall I go on?"], "premature_termination"),
    ],
)
def test_a_missing_write_is_added_and_the_words_say_why_it_was_missing(
    says: Sequence[str], category: str
) -> None:
    result = proven(failure(PAYMENT, [], says), PAYMENT)
    assert labels(result) == ("repaired", category, "modify_payment")
    (edit,) = result.edits
    assert (edit.operation, edit.tool, edit.turn, edit.call) == (
        "insert", "modify_payment", None, None,
    )  # fmt: skip


def test_a_hand_over_instead_of_the_write_is_over_cautious() -> None:
    call: Write = ("transfer_to_human", {"order_id": gold(PAYMENT)[0][1]["order_id"]})
    assert proven(failure(PAYMENT, [call]), PAYMENT).category == "over_cautious"


def test_several_edits_are_named_for_the_first_category_of_the_rules() -> None:
    (_, (address, where)) = gold(TWO)
    result = proven(failure(TWO, [(address, {**where, "street": "Nowhere"})]), TWO)
    assert sorted(operations(result)) == [
        ("arguments", "modify_address"), ("insert", "modify_payment"),
    ]  # fmt: skip
    assert labels(result) == ("repaired", "incorrect_arguments", "modify_payment")


def test_a_loop_of_refused_calls_does_not_hide_the_wrong_argument() -> None:
    ((name, arguments),) = gold(RETURN)
    calls = [(name, {**arguments, "payment_id": "P0"})] * 5
    data = failure(RETURN, calls)
    assert diagnose(data, catalog("shop")).category == "tool_loop"
    result = proven(data, RETURN)
    assert labels(result) == ("repaired", "incorrect_arguments", "return_item")
    assert len(result.edits) == 1


def test_nothing_tried_for_want_of_the_record_stays_a_user_id_failure() -> None:
    result = proven(failure(PAYMENT, [], login=False), PAYMENT)
    assert labels(result) == ("repaired", "user_id_failure", "modify_payment")


def test_a_write_without_the_record_is_judged_by_the_write() -> None:
    order = gold(PAYMENT)[0][1]["order_id"]
    call: Write = ("cancel_order", {"order_id": order})
    assert proven(failure(PAYMENT, [call], login=False), PAYMENT).category == "wrong_tool"


def test_words_that_are_missing_while_the_state_is_right_are_proven_too() -> None:
    result = proven(failure(QUESTION, [], ["It was P0."]), QUESTION)
    assert labels(result) == ("state_right", "information_error", "*")
    assert result.edits == ()


def test_an_episode_that_was_cut_off_is_no_information_error() -> None:
    data = failure(QUESTION, [], ["It was P0."], termination="max_steps")
    assert labels(proven(data, QUESTION)) == ("state_right", None, None)


def test_a_rollout_that_the_tools_answer_otherwise_is_skipped() -> None:
    data = failure(PAYMENT, [("cancel_order", {"order_id": gold(PAYMENT)[0][1]["order_id"]})])
    assert data.content is not None
    messages = tuple(
        message.model_copy(update={"error": True}) if place == 4 else message
        for place, message in enumerate(data.content.messages)
    )
    result = proven(data.model_copy(update={"content": RolloutContent(messages=messages)}), PAYMENT)
    assert result.outcome == "skipped"
    assert "cancel_order" in result.reason
    assert "turn 3" in result.reason


def test_a_state_that_was_graded_otherwise_is_skipped() -> None:
    data = failure(PAYMENT, [], reward_parts={"DB": 1.0})
    result = proven(data, PAYMENT)
    assert (result.outcome, result.category) == ("skipped", None)
    assert "graded 1" in result.reason


def test_a_verdict_that_compares_no_states_is_skipped() -> None:
    task = PAYMENT.model_copy(
        update={"criteria": PAYMENT.criteria.model_copy(update={"reward_basis": ("COMMUNICATE",)})}
    )
    data = failure(task, [], ["No."])
    assert proven(data, task).outcome == "skipped"


def test_the_recorded_gold_counts_where_the_task_was_edited_since() -> None:
    order = gold(PAYMENT)[0][1]["order_id"]
    data = failure(PAYMENT, [("cancel_order", {"order_id": order})])
    assert data.task is not None
    older = data.task.model_copy(update={"gold_actions": (), "definition": "older"})
    result = proven(data.model_copy(update={"task": older}), PAYMENT)
    assert labels(result) == ("repaired", "policy_violation", "*")


def search(data: RolloutEnded, task: Any, **bounds: Any) -> RepairSearch:
    facts = Facts(data, SHOP.catalog)
    return RepairSearch(SHOP, task, [call.item for call in facts.calls], SHOP.catalog, **bounds)


def test_each_bound_ends_the_search_and_is_named() -> None:
    data = failure(TWO, [])
    assert len(search(data, TWO).run().edits or ()) == 2
    for bounds, word in (
        ({"replays": 2}, "2 replays"), ({"edits": 1}, "1 edits"), ({"seconds": -1.0}, "time"),
    ):  # fmt: skip
        result = search(data, TWO, **bounds).run()
        assert result.edits is None
        assert word in result.bound
    many = [gold(RETURN)[0]] * 61
    assert search(failure(TWO, many), TWO).run().bound == "60 writes"


def test_the_same_rollout_gives_the_same_event() -> None:
    data = failure(TWO, [("cancel_order", {"order_id": pending(TWO)})])
    assert proven(data, TWO) == proven(data, TWO)
    assert proven(data, TWO).outcome == "repaired"


CHANGEABLE = ("two_writes", "payment", "address", "cancel", "compound", "ineligible")


@hypothesis_settings(max_examples=40)
@given(
    capability=st.sampled_from(CHANGEABLE),
    seed=st.integers(0, 30),
    omitted=st.sets(st.integers(0, 1)),
    extra=st.integers(0, 2),
)
def test_no_more_edits_are_needed_than_mistakes_were_made(
    capability: str, seed: int, omitted: set[int], extra: int
) -> None:
    """Gold writes are left out and orders of others are cancelled: undone in as many edits."""
    task = SHOP.task(f"shop/{capability}/{seed}")
    writes = gold(task)
    kept = [write for place, write in enumerate(writes) if place not in omitted]
    own = {arguments["order_id"] for _, arguments in writes}
    others = [
        key
        for key, order in SHOP.reset(task)["orders"].items()
        if order["status"] == "pending" and key not in own
    ][:extra]
    mistakes = len(writes) - len(kept) + len(others)
    if not mistakes:
        return
    cancelled: list[Write] = [("cancel_order", {"order_id": key}) for key in others]
    if mistakes > 3:
        return
    data = failure(task, [*cancelled, *kept])
    result = proven(data, task)
    assert result.outcome == "repaired"
    assert len(result.edits) <= mistakes
    fewer = len(result.edits) - 1
    assert not fewer or search(data, task, edits=fewer).run().edits is None


def test_a_system_prompt_moves_the_turns_with_it() -> None:
    extra: Write = ("cancel_order", {"order_id": pending(REFUSE)})
    data = failure(REFUSE, [extra], ["Sorry not possible."])
    assert data.content is not None
    prompt = Message(role="system", content="Be kind.")
    moved = data.model_copy(
        update={"content": RolloutContent(messages=(prompt, *data.content.messages))}
    )
    assert [edit.turn for edit in proven(moved, REFUSE).edits] == [4]


def list_failures(benchmarks: Path, pattern: str) -> Iterator[tuple[str, RolloutEnded]]:
    """File and rollout of each failure in the recordings of the folder."""
    for file in sorted(benchmarks.glob(pattern)):
        for item in read_rollouts([file]):
            assert not isinstance(item, Rejection), f"{item.file}: {item.reason}"
            if item.data.success is False:
                yield file.name, item.data


@pytest.mark.benchmarks
def test_recorded_failures_are_replayed_and_repaired(benchmarks: Path) -> None:
    """docs/LOG.md, executed repair: what the real recordings come to."""
    places = {name: open_environment(name, benchmarks=benchmarks) for name in ("airline", "retail")}
    trusted: list[tuple[RepairSearched, Diagnosis]] = []
    others: list[RepairSearched] = []
    for pattern in (
        "tau2_simulations/*airline*.json", "tau2_simulations/*retail*.json",
        "tau_bench/gpt-4o-airline.trials_0_1.json",
    ):  # fmt: skip
        for file, data in list_failures(benchmarks, pattern):
            assert data.task is not None
            environment = places[data.task.environment or ""]
            repair = prove(environment, environment.task(data.task.id), data)
            if "BROKEN_TASK_IDS" in file:
                others.append(repair)
            else:
                trusted.append((repair, diagnose(data, catalog(environment.name))))
    outcomes = Counter(repair.outcome for repair, _ in trusted)
    assert outcomes == {"repaired": 99, "state_right": 4}
    assert all(repair.pivot in (None, rules.pivot) for repair, rules in trusted)
    assert sum(repair.category == rules.category for repair, rules in trusted) == 92
    # Rollouts filed under the tasks of others contradict their verdicts, or cannot be repaired.
    assert Counter(repair.outcome for repair in others)["skipped"] == 2
