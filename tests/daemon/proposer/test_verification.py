"""The ten checks: what shop writes passes them, and each refuses what it is there for."""

from collections.abc import Callable
from typing import Any

import pytest

from daemon.proposer.candidate import (
    FIRST_SEED,
    Candidate,
    CandidateFacts,
    CheckFailure,
    Evaluation,
    PriorTask,
)
from daemon.proposer.verification import CHECKS, Verdict, likeness, seed_of, verify
from envs.airline.environment import Airline
from envs.environment import Environment
from envs.evidence.spelling import find_name, has_id
from envs.registry import open_environment
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import Answer, TaskDefinition
from events.learning import Check, Mode
from tests.envs.mini import Mini

SHOP = Shop()
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def examined(
    task: TaskDefinition,
    mode: Mode = "explore",
    source: TaskDefinition | None = None,
    environment: Environment = SHOP,
    **given: Any,
) -> CandidateFacts:
    return CandidateFacts(environment, Candidate(task, mode, source or task), **given)


def fresh(kind: str = "cancel", seed: int = 1) -> TaskDefinition:
    return SHOP.generate(kind, FIRST_SEED + seed)


def changed(task: TaskDefinition, **fields: Any) -> TaskDefinition:
    """With other fields, those of scenario and criteria among them."""
    update: dict[str, Any] = {}
    for name, value in fields.items():
        part = next((p for p in ("scenario", "criteria") if hasattr(getattr(task, p), name)), None)
        if part is None:
            update[name] = value
        else:
            whole = update.get(part, getattr(task, part))
            update[part] = whole.model_copy(update={name: value})
    return task.model_copy(update=update)


def refused(check: Check, examination: CandidateFacts) -> str:
    """Why a check refuses it."""
    with pytest.raises(CheckFailure) as failure:
        CHECKS[check](examination)
    return str(failure.value)


@pytest.mark.parametrize("kind", Shop.capabilities)
def test_what_shop_writes_passes_in_both_modes(kind: str) -> None:
    source = SHOP.generate(kind, 2**24)
    task = fresh(kind)
    verdict = verify(examined(task, source=source, known=[PriorTask.of(fresh(kind, 2))]))
    assert verdict.failed is None, verdict.reason
    assert [one.check for one in verdict.passed] == [
        one for one in CHECKS if one not in ("informative", "lesson")
    ]
    assert {one.check: one.note for one in verdict.passed}["solvable"] == "scripted oracle"
    made = (SHOP.rephrase(source, seed) for seed in range(9))
    verdicts = [verify(examined(one, "inherit", source)) for one in made if one is not None]
    assert any(verdict.failed is None for verdict in verdicts)
    assert {verdict.failed for verdict in verdicts} <= {None, "novelty"}


@pytest.mark.parametrize("environment", [Retail(), Airline(), Mini()], ids=lambda one: one.name)
def test_what_other_environments_write_passes(environment: Environment) -> None:
    for kind in environment.capabilities:
        task = environment.generate(kind, FIRST_SEED + 1)
        source = environment.generate(kind, 3)
        verdict = verify(examined(task, source=source, environment=environment))
        assert verdict.failed is None, (task.id, verdict)


def test_schema_asks_for_a_request_and_an_id_that_gives_the_task_again() -> None:
    task = fresh()
    assert "no reason" in refused("schema", examined(changed(task, reason_for_call=" ")))
    assert "another task" in refused("schema", examined(changed(task, unknown_info="All.")))
    assert "gives no task" in refused("schema", examined(changed(task, id="shop/none/1")))
    assert "'mini'" in refused("schema", examined(changed(task, environment="mini")))


def test_schema_asks_for_patterns_that_are_searched_in_linear_time() -> None:
    task = fresh()
    assert task.script is not None
    answer = Answer(asks=r"\bconfirm\b(?! nothing)", says="Yes.")
    for update in ({"answers": (answer,)}, {"ends": r"(done) \1"}):
        script = task.script.model_copy(update=update)
        reason = refused("schema", examined(task.model_copy(update={"script": script})))
        assert "which is not searched in linear time; write it without" in reason


def test_gold_must_be_known_and_possible_and_change_what_it_says() -> None:
    task = fresh()
    *looks, write = task.criteria.gold_actions or ()
    assert "nobody knows" in refused("gold", examined(changed(task, gold_actions=None)))
    twice = changed(task, gold_actions=(*looks, write, write))
    assert "cancel_order is refused: " in refused("gold", examined(twice))
    theirs = write.model_copy(update={"requestor": "user"})
    assert "users here have no tools" in refused(
        "gold", examined(changed(task, gold_actions=(theirs,)))
    )
    CHECKS["gold"](examined(changed(task, gold_actions=tuple(looks))))


class Idle(Shop):
    """One in which whatever is looked up counts as a change."""

    writes = frozenset({"get_order"})


def test_gold_that_writes_must_change_the_state() -> None:
    (*looks, _) = fresh().criteria.gold_actions or ()
    task = changed(fresh(), gold_actions=tuple(looks))
    assert "change nothing" in refused("gold", examined(task, environment=Idle()))


def test_gold_of_an_inherited_task_is_its_sources() -> None:
    assert "does not keep" in refused("gold", examined(fresh(seed=1), "inherit", fresh(seed=2)))
    other_state = changed(fresh(), seed=fresh().seed + 1)
    assert "does not keep" in refused("gold", examined(other_state, "inherit", fresh()))


def test_provenance_asks_who_told_each_value() -> None:
    task = fresh("address")
    *looks, write = task.criteria.gold_actions or ()
    street = {**write.arguments, "street": "Nowhere"}
    unsaid = (*looks, write.model_copy(update={"arguments": street}))
    assert "street of modify_address is 'Nowhere'" in refused(
        "provenance", examined(changed(task, gold_actions=unsaid))
    )
    silent = changed(
        task, script=None, reason_for_call="Help.", known_info="", task_instructions=""
    )
    assert "which nobody says" in refused("provenance", examined(silent))


def test_provenance_looks_around_where_gold_does_not() -> None:
    """The order of `one_order` is only in the customer's record, whose id only a search tells."""
    task = fresh("one_order")
    gold = tuple(a for a in task.criteria.gold_actions or () if a.name != "get_user")
    CHECKS["provenance"](examined(changed(task, gold_actions=gold)))


def return_item() -> tuple[Retail, TaskDefinition, str]:
    """A task that returns an item, and the item's id, which its user does not know."""
    retail = Retail()
    source = retail.generate("return", 5)
    (item,) = [
        action.arguments["item_ids"][0]
        for action in source.criteria.gold_actions or ()
        if "item_ids" in action.arguments
    ]
    return retail, source, item


def test_leak_is_a_tools_name_or_an_internal_id_that_the_source_did_not_say() -> None:
    task = changed(fresh(), unknown_info="Please use cancel_order for it.")
    assert "cancel_order" in refused("leak", examined(task, source=fresh()))
    CHECKS["leak"](examined(task, source=task))
    retail, source, item = return_item()
    told = changed(source, known_info=f"{source.scenario.known_info} The item is {item}.")
    assert item in refused("leak", examined(told, source=source, environment=retail))


@pytest.mark.parametrize(
    "spell",
    [
        lambda item: f"#{item}",
        lambda item: f"item{item}",
        lambda item: f"item_{item}",
        lambda item: f"{item[:4]} {item[4:]}",
        lambda item: f"{item[:2]}-{item[2:5]}-{item[5:]}",
        lambda item: ", ".join(item),
        lambda item: " ".join(DIGITS[int(digit)] for digit in item),
    ],
)
def test_an_internal_id_leaks_however_it_is_spelled(spell: Callable[[str], str]) -> None:
    retail, source, item = return_item()
    told = changed(source, unknown_info=f"It is {spell(item)}, I think.")
    assert item in refused("leak", examined(told, source=source, environment=retail))
    CHECKS["leak"](examined(told, source=told, environment=retail))
    for other in (item[:-1], item[::-1]):
        kept = changed(source, unknown_info=f"It is {spell(other)}, I think.")
        CHECKS["leak"](examined(kept, source=source, environment=retail))


@pytest.mark.parametrize("sign", ["-", "_", "1", "a"])
def test_an_id_of_many_signs_is_looked_for_in_linear_time(sign: str) -> None:
    """A backtracking search for one of 40 signs, with a sign between any two, takes years."""
    assert not has_id("1" + sign * 100_000, "1" + sign * 60 + "x")
    assert has_id(f"it is 1{sign * 60}x", "1" + sign * 60 + "x")


@pytest.mark.parametrize(
    "spelling",
    ["cancelorder", "cancelOrder", "CANCELORDER", "cancelOrder()", "`cancel_order`",
     "shop.cancel_order", "shop.cancelOrder", "_cancel_order_"],
)  # fmt: skip
def test_a_tools_name_leaks_however_it_is_written_as_one_word(spelling: str) -> None:
    told = changed(fresh(), unknown_info=f"Please use {spelling} for it.")
    assert "the user names the tool cancel_order" in refused("leak", examined(told, source=fresh()))
    CHECKS["leak"](examined(told, source=told))
    telecom = open_environment("telecom")
    task = telecom.generate(next(iter(telecom.capabilities)), FIRST_SEED)
    own = changed(task, unknown_info="I can call toggle-airplane-mode for it.")
    assert "toggle_airplane_mode" in refused(
        "leak", examined(own, source=task, environment=telecom)
    )


@pytest.mark.parametrize(
    "words",
    ["Please cancel order O12.", "Cancel my order.", "I want to cancel.Order it is O12.",
     "I hope to cancel-order O12 is wrong."],
)  # fmt: skip
def test_plain_english_is_no_tools_name(words: str) -> None:
    CHECKS["leak"](examined(changed(fresh(), unknown_info=words), source=fresh()))


def test_a_word_that_is_english_too_is_no_tools_name() -> None:
    """A phrasal verb and what policy or tools call things themselves are words that a customer
    has."""
    tools = ("check_in", "time_zone", "log_out")
    common = {"timezone"}
    for word in ("checkin", "check-in", "timezone", "logout", "time-zone"):
        assert find_name({word}, tools, common) is None
    assert find_name({"check_in"}, tools, common) == "check_in"
    assert find_name({"timezone"}, tools, ()) == "time_zone"


@pytest.mark.parametrize(
    ("output", "why"),
    [("Sorry, not possible.", "comma"), ("Answer: 9999.", "no tool"), ("Answer: zebra.", "no tool"),
     ("Hello there.", "no tool")],
)  # fmt: skip
def test_outputs_are_answers_of_tools_or_dictated(output: str, why: str) -> None:
    task = changed(fresh(), outputs=(output,))
    assert why in refused("outputs", examined(task))


def test_outputs_may_be_the_policys_closings_and_computed_numbers() -> None:
    CHECKS["outputs"](examined(changed(fresh(), outputs=("Sorry not possible.", "Done."))))
    retail = Retail()
    for seed in range(3):
        task = retail.generate("question_refund", seed)
        CHECKS["outputs"](examined(task, environment=retail))


def test_policy_is_kept_by_the_perfect_agent() -> None:
    task = fresh()
    _find, *rest = task.criteria.gold_actions or ()
    assert "before the customer was found" in refused(
        "policy", examined(changed(task, gold_actions=tuple(rest)))
    )


class Lenient(Shop):
    """One that objects to nothing."""

    def violations(self, task: TaskDefinition, messages: Any) -> tuple[str, ...]:
        return ()


def test_policy_asks_for_authentication_even_where_the_environment_does_not() -> None:
    _find, *rest = fresh().criteria.gold_actions or ()
    task = changed(fresh(), gold_actions=tuple(rest))
    assert "comes before" in refused("policy", examined(task, environment=Lenient()))
    CHECKS["policy"](examined(fresh(), environment=Lenient()))


def test_solvable_means_that_the_oracle_wins() -> None:
    script = fresh().script
    assert script is not None
    mute = changed(fresh(), script=script.model_copy(update={"answers": ()}))
    assert "oracle loses" in refused("solvable", examined(mute))
    judged = changed(fresh(), reward_basis=("DB", "NL_ASSERTION"), nl_assertions=("It is kind.",))
    assert "judge" in refused("solvable", examined(judged))


def test_informative_is_claimed_only_where_somebody_samples() -> None:
    def verdict(passes: int, hard: bool = True) -> Verdict:
        return verify(examined(fresh(), source=fresh(seed=2), sampler=lambda _: passes, hard=hard))

    assert {one.check: one.note for one in verdict(3).passed}["informative"] == "3 of 8"
    assert verdict(8).failed == "informative"
    assert verdict(0).failed is None
    assert verdict(0, hard=False).failed == "informative"


def test_novelty_is_other_calls_or_other_words() -> None:
    task, source = fresh(), fresh(seed=2)
    assert "nearly the same words" in refused(
        "novelty", examined(task, source=source, known=[PriorTask.of(task)])
    )
    record = task.record()
    recorded = PriorTask.from_record(record.gold_actions, record.instruction)
    assert recorded == PriorTask.of(task)
    CHECKS["novelty"](
        examined(task, source=source, known=[PriorTask(task.signature, "Call it off!")])
    )
    other = PriorTask(source.signature, task.scenario.reason_for_call)
    CHECKS["novelty"](examined(task, source=source, known=[other]))
    assert "nearly the same words" in refused("novelty", examined(task, "inherit", task))


def test_contamination_is_a_seed_a_signature_or_a_definition_of_an_evaluation() -> None:
    task, source = fresh(), SHOP.generate("cancel", 2**24)

    def why(made: TaskDefinition, mode: Mode = "explore", **given: Any) -> str:
        return refused("contamination", examined(made, mode, source, **given))

    for seed in (2**32, 2**27, 2**24, 0):
        assert f"seed {seed}" in why(SHOP.generate("cancel", seed))
    assert "seed" in why(task, "inherit")
    by_signature = Evaluation(signatures=frozenset({task.signature or ""}))
    assert "evaluated with" in why(task, evaluation=by_signature)
    by_definition = Evaluation(definitions=frozenset({task.digest()}))
    assert "evaluated with" in why(task, evaluation=by_definition)
    assert "benchmark" in why(changed(task, split="test"))
    CHECKS["contamination"](examined(task, source=source))
    CHECKS["contamination"](examined(changed(task, id="shop/cancel/16777216/7"), "inherit", source))


@pytest.mark.parametrize("seed", [2**27, 2**28 - 1, 2**32])
def test_no_task_says_in_other_words_what_reports_and_gates_ask(seed: int) -> None:
    source = SHOP.generate("cancel", seed)
    other = SHOP.rephrase(source, 7)
    assert other is not None
    why = refused("contamination", examined(other, "inherit", source))
    assert why == f"its seed {seed} is kept for reports and gates"
    written = SHOP.generate("cancel", 2**28)
    again = SHOP.rephrase(written, 7)
    assert again is not None
    CHECKS["contamination"](examined(again, "inherit", written))


class Broken(Shop):
    """One whose own code raises."""

    def violations(self, task: TaskDefinition, messages: Any) -> tuple[str, ...]:
        raise ZeroDivisionError("by zero")


def test_an_environment_that_raises_fails_the_check_and_nothing_else() -> None:
    verdict = verify(examined(fresh(), environment=Broken()))
    assert verdict.failed == "policy"
    assert verdict.reason == "the environment raised ZeroDivisionError: by zero"
    assert [one.check for one in verdict.passed] == list(CHECKS)[:5]


def test_the_seed_of_an_id_is_its_first_number() -> None:
    assert seed_of("shop/cancel/7/12") == seed_of("shop/cancel/7") == 7
    assert seed_of("retail/test") is None


def test_likeness_is_by_runs_of_three_words() -> None:
    assert likeness("a b c d", "a b c d") == 1
    assert likeness("a b c d", "a b c e") == 1 / 3
    assert likeness("a b", "a b") == 1
    assert likeness("a b", "b a") == 0
