"""The rules of shop: what breaks them is found, and no cheap way around them pays."""

import re
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.agents import Agent, call
from envs.grading import Grade, grade
from envs.shop.case import STATUS, Case
from envs.shop.environment import Shop
from envs.shop.kinds import KINDS
from envs.shop.oracle import ShopOracle
from envs.shop.policy import DONE, REFUSED, output
from envs.shop.tables import make_tables
from envs.shop.vocabulary import STATUSES
from envs.task import TaskDefinition
from events.messages import Action, Message
from tests.envs.shop.play import Hedger, Lister, LookingRefuser, Refuser, Rusher, graded, played

SHOP = Shop()
REFUSALS = ("ineligible", "unavailable", "refund", "other_owner")


def tasks(kind: str, seeds: int = 30) -> list[TaskDefinition]:
    return [SHOP.generate(kind, seed) for seed in range(seeds)]


def passes(kind: str, agent: Callable[[TaskDefinition], Agent]) -> float:
    grades = [graded(SHOP, task, agent(task)) for task in tasks(kind)]
    return sum(grade.success is True for grade in grades) / len(grades)


@pytest.mark.parametrize("kind", KINDS)
def test_refusing_everything_passes_nothing(kind: str) -> None:
    assert passes(kind, lambda task: Refuser()) == 0.0


@pytest.mark.parametrize("text", ["Sorry - not possible.", "Done! **Sorry** not possible."])
@pytest.mark.parametrize("kind", REFUSALS)
def test_refusing_in_other_signs_passes_nothing(kind: str, text: str) -> None:
    assert passes(kind, lambda task: Refuser(text)) == 0.0


def test_listing_answers_in_other_signs_passes_nothing() -> None:
    assert passes("question", lambda task: Lister(task, SHOP.writes)) == 0.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSALS])
def test_looking_everything_up_and_refusing_passes_nothing(kind: str) -> None:
    assert passes(kind, lambda task: LookingRefuser(task, SHOP.writes)) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_saying_both_closings_passes_nothing(kind: str) -> None:
    assert passes(kind, lambda task: Hedger(task, SHOP.writes)) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_writing_without_asking_passes_nothing_that_needs_a_write(kind: str) -> None:
    for task in tasks(kind):
        gold = task.criteria.gold_actions or ()
        writes = any(action.name in SHOP.writes for action in gold)
        grade = graded(SHOP, task, Rusher(task, SHOP.writes))
        assert grade.success is not writes
        assert grade.parts["DB"] == 1.0


@pytest.mark.parametrize("verb", STATUS)
def test_one_habit_passes_only_where_it_is_right(verb: str) -> None:
    """An agent that always cancels (returns, ...), perfectly, whatever is asked."""
    for kind in KINDS:
        for task in tasks(kind):
            habit = _habit(task, verb)
            right = _writes(task) == _writes(habit) and task.criteria.outputs == (output(DONE),)
            assert graded(SHOP, task, SHOP.oracle(habit)).success is right, task.id


def _writes(task: TaskDefinition) -> list[Action]:
    return [a for a in task.criteria.gold_actions or () if a.name not in ("get_user", "get_order")]


def _habit(task: TaskDefinition, verb: str) -> TaskDefinition:
    """The task with the gold of a habit: the same order, always the same wish."""
    gold = task.criteria.gold_actions or ()
    tables = make_tables(task.seed)
    order_id = next(a.arguments["order_id"] for a in gold if a.name == "get_order")
    order = tables["orders"][order_id]
    case = Case(tables, tables["users"][order["user_id"]], Random(f"habit {task.id}"))
    calls = (gold[0], *case.wish(verb, order).calls)
    criteria = task.criteria.model_copy(update={"gold_actions": calls, "outputs": (output(DONE),)})
    return task.model_copy(update={"criteria": criteria})


def transcript(kind: str, seed: int = 0) -> tuple[TaskDefinition, list[Message]]:
    task = SHOP.generate(kind, seed)
    return task, played(SHOP, task, SHOP.oracle(task)).messages


def violations(task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
    return SHOP.violations(task, messages)


def test_an_oracle_breaks_no_rule() -> None:
    for kind in KINDS:
        assert violations(*transcript(kind)) == ()


def test_a_write_before_the_customer_is_found_breaks_a_rule() -> None:
    task, messages = transcript("cancel")
    unknown = [m.model_copy(update={"error": True}) if m.role == "tool" else m for m in messages]
    assert violations(task, unknown) == ("cancel_order before the customer was found",)
    assert violations(task, [messages[0], *messages[3:]]) == (
        "cancel_order before the customer was found",
    )


def _edited(
    messages: Sequence[Message], edit: Callable[[Message], Message | None]
) -> list[Message]:
    return [edited for message in messages if (edited := edit(message)) is not None]


def test_a_no_is_no_leave() -> None:
    task, messages = transcript("payment")
    refused = _edited(
        messages,
        lambda m: m.model_copy(update={"content": "No."}) if m.text.startswith("Yes") else m,
    )
    assert violations(task, refused) == ("modify_payment without a yes just before it",)


def test_leave_is_for_what_the_question_named() -> None:
    task, messages = transcript("address")
    vague = _edited(
        messages,
        lambda m: (
            m.model_copy(update={"content": "Confirm: new street?"})
            if m.text.startswith("Confirm")
            else m
        ),
    )
    order_id = (task.criteria.gold_actions or ())[-1].arguments["order_id"]
    assert violations(task, vague) == (
        f"modify_address with {order_id}, which the confirmation did not name",
    )


def test_one_yes_is_leave_for_one_write() -> None:
    task, messages = transcript("two_writes")
    gold = task.criteria.gold_actions or ()
    asked = [i for i, m in enumerate(messages) if m.text.startswith("Confirm")]
    # The second question and its answer are left out.
    once = [m for i, m in enumerate(messages) if i not in (asked[1], asked[1] + 1)]
    assert violations(task, once) == (f"{gold[-1].name} without a yes just before it",)


def test_a_read_between_the_yes_and_the_write_takes_the_leave_away() -> None:
    task, messages = transcript("cancel")
    place = next(i for i, m in enumerate(messages) if m.text.startswith("Yes"))
    late = [*messages[: place + 1], *messages[3:5], *messages[place + 1 :]]
    assert violations(task, late) == ("cancel_order without a yes just before it",)


def test_an_answer_that_is_not_the_right_one_breaks_a_rule() -> None:
    task, messages = transcript("question")
    answers = Message(role="assistant", content="Answer: pending. Answer: P77.")
    found = violations(task, [*messages[:5], answers, *messages[5:]])
    assert "said 'answer: p77.'" in found


@pytest.mark.parametrize("before", ["", "x", "An"])
def test_many_answers_are_no_answer_however_they_begin(before: str) -> None:
    task, messages = transcript("question")
    words = [*STATUSES, *re.findall(r"\w+", str(task.criteria.outputs))]
    answers = Message(
        role="assistant", content=" ".join(f"{before}Answer: {word}." for word in words)
    )
    assert violations(task, [*messages[:5], answers, *messages[5:]])


def test_a_transfer_is_made_where_it_is_wanted_and_nowhere_else() -> None:
    task, messages = transcript("ineligible")
    order_id = (task.criteria.gold_actions or ())[-1].arguments["order_id"]
    transfer = [
        call(Action(name="transfer_to_human", arguments={"order_id": order_id}), 9),
        Message(role="tool", content="{}", error=False),
    ]
    transferred = [*messages[:5], *transfer, *messages[5:]]
    assert violations(task, transferred) == ("transferred a customer who did not want it",)
    wanted = next(t for t in tasks("handover") if "transfer" in str(t.criteria.gold_actions))
    found = graded(SHOP, wanted, Refuser()).violations
    assert "did not transfer a customer who wanted it" in found


def handovers() -> list[TaskDefinition]:
    return [t for t in tasks("handover") if "transfer_to_human" in str(t.criteria.gold_actions)]


def test_a_transfer_needs_a_look_first() -> None:
    for task in handovers():
        messages = played(SHOP, task, SHOP.oracle(task)).messages
        unseen = [messages[0], *messages[5:]]
        assert violations(task, unseen) == (
            "transferred without a look at the customer and the order",
        )
        afterwards = [messages[0], *messages[5:7], *messages[1:5], *messages[7:]]
        assert violations(task, afterwards) == violations(task, unseen)


def test_a_transfer_of_every_order_is_none() -> None:
    task = handovers()[0]
    messages = played(SHOP, task, SHOP.oracle(task)).messages
    gold = task.criteria.gold_actions or ()
    other = next(
        order
        for order in make_tables(task.seed)["orders"]
        if order != gold[-1].arguments["order_id"]
    )
    again = [
        call(Action(name="transfer_to_human", arguments={"order_id": other}), 9),
        Message(role="tool", content="{}", error=False),
    ]
    assert violations(task, [*messages[:7], *again, *messages[7:]]) == (
        "transferred a customer with another order than theirs",
    )


def test_a_refusal_of_another_order_is_unseen() -> None:
    task, messages = transcript("ineligible")
    other = next(key for key in make_tables(task.seed)["orders"] if key not in str(messages))
    elsewhere = _edited(
        messages,
        lambda m: (
            call(Action(name="get_order", arguments={"order_id": other}), 1)
            if m.tool_calls and m.tool_calls[0].name == "get_order"
            else m
        ),
    )
    assert violations(task, elsewhere) == ("refused without a look at the customer and the order",)


def test_the_sentence_of_refusal_is_heard_with_its_comma() -> None:
    assert "," in REFUSED
    task, messages = transcript("other_owner")
    assert grade(SHOP, task, messages, "user_stop").missing == ()


LOOKUPS = {
    "get_order": ("order_id", "orders"),
    "get_product": ("product", "products"),
    "get_user": ("user_id", "users"),
}
READS = st.lists(st.tuples(st.sampled_from(list(LOOKUPS)), st.integers(0, 9)), min_size=2)


@given(
    kind=st.sampled_from(list(KINDS)),
    seed=st.integers(0, 10_000),
    reads=READS,
    agent=st.sampled_from([ShopOracle, Rusher, Hedger]),
    order=st.randoms(use_true_random=False),
)
def test_reads_that_matter_to_nothing_change_no_grade_in_any_order(
    kind: str,
    seed: int,
    reads: list[tuple[str, int]],
    agent: type[ShopOracle],
    order: Random,
) -> None:
    task = SHOP.generate(kind, seed)
    episode = played(SHOP, task, agent(task, SHOP.writes))
    pairs = [_looked_up(task, *read) for read in reads]
    shuffled = list(pairs)
    order.shuffle(shuffled)

    def graded_with(extra: list[tuple[Message, Message]]) -> Grade:
        # After the customer is found: the first call and its result are messages 1 and 2.
        inserted = [message for pair in extra for message in pair]
        messages = [*episode.messages[:3], *inserted, *episode.messages[3:]]
        return grade(SHOP, task, messages, episode.termination)

    plain = graded_with([])
    assert graded_with(pairs) == graded_with(shuffled) == plain


def _looked_up(task: TaskDefinition, tool: str, place: int) -> tuple[Message, Message]:
    argument, table = LOOKUPS[tool]
    keys = list(make_tables(task.seed)[table])
    arguments = {argument: keys[place % len(keys)]}
    result = SHOP.toolset(SHOP.reset(task)).call(tool, arguments)
    said = Message(role="tool", content=result.content, error=result.error)
    return call(Action(name=tool, arguments=arguments), place), said
