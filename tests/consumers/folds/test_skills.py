"""Skills in the tables: those of the last comparison, and what became of the others."""

import pytest
from sqlalchemy import Engine

from consumers.diagnosis.round_counts import Pair
from consumers.methods.skills.reads import (
    SkillComparisonLine,
    SkillLine,
    read_comparisons,
    read_skills,
)
from consumers.reads import rollouts
from consumers.rebuild import rebuild
from events.learning import SkillsContrasted
from tests.consumers.cycling import Leading
from tests.consumers.methods.skills.test_skills import CLEAR, EQUAL, contrast


@pytest.fixture
def leading(engine: Engine) -> Leading:
    return Leading(engine)


def contrasted(number: int, *names: str, alias: str = "agent") -> SkillsContrasted:
    skills = tuple(contrast(name, *10 * [CLEAR], examples=("rollout-1",)) for name in names)
    return SkillsContrasted(
        alias=alias, base="base", since=0, round=number, failures=40, successes=40, skills=skills
    )


def lines(leading: Leading) -> dict[str, SkillLine]:
    """Skill -> line, once a rebuild has agreed."""
    assert rebuild(leading.log, leading.engine).equal
    with leading.tables() as connection:
        assert rollouts.dead_letters(connection) == []
        return {line.skill: line for line in read_skills(connection, "agent")}


def test_the_last_comparison_counts_and_what_it_lacks_is_absent(leading: Leading) -> None:
    leading.say(contrasted(1, "cancel_order", "get_order"), "one")
    leading.say(contrasted(1, "return_item", alias="other"), "two")
    leading.say(contrasted(5, "get_order", "exchange_item"), "three")
    known = lines(leading)
    assert {name: (line.state, line.round) for name, line in known.items()} == {
        "cancel_order": ("absent", 1), "get_order": ("selected", 5),
        "exchange_item": ("selected", 5),
    }  # fmt: skip
    assert known["get_order"].patterns == ("wrong_entity|get_order",)
    assert known["get_order"].examples == ("rollout-1",)
    assert known["get_order"].delta == pytest.approx(0.5)
    assert (known["get_order"].selected, known["get_order"].labellings) == (10, 10)


def test_a_skill_that_is_back_has_its_new_figures(leading: Leading) -> None:
    leading.say(contrasted(1, "cancel_order"), "one")
    leading.say(contrasted(2), "two")
    assert lines(leading)["cancel_order"].state == "absent"
    again = contrasted(3).model_copy(update={"skills": (contrast("cancel_order", EQUAL),)})
    leading.say(again, "three")
    line = lines(leading)["cancel_order"]
    assert (line.state, line.round, line.labellings) == ("rejected", 3, 1)


@pytest.mark.parametrize("last", [("cancel_order",), ()], ids=["with candidates", "without"])
def test_a_comparison_of_earlier_rounds_changes_nothing(
    leading: Leading, last: tuple[str, ...]
) -> None:
    leading.say(contrasted(5, *last), "one")
    leading.say(contrasted(4, "get_order"), "two")
    assert lines(leading).keys() == set(last)
    assert comparison(leading).round == 5


def comparison(leading: Leading) -> SkillComparisonLine:
    with leading.tables() as connection:
        return read_comparisons(connection)[Pair("agent", "base")]


def test_a_comparison_without_candidates_is_known(leading: Leading) -> None:
    leading.say(contrasted(1, "cancel_order"), "one")
    leading.say(contrasted(9).model_copy(update={"failures": 0, "since": 6}), "two")
    assert lines(leading)["cancel_order"].state == "absent"
    line = comparison(leading)
    assert (line.since, line.round, line.failures, line.successes) == (6, 9, 0, 40)


def test_a_stale_leader_changes_nothing(leading: Leading) -> None:
    leading.say(contrasted(1, "cancel_order"), "one")
    leading.claim(1)
    leading.claim(2, "other")
    leading.say(contrasted(2, "get_order"), "late", epoch=1)
    assert lines(leading).keys() == {"cancel_order"}
