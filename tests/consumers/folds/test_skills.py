"""Skills in the tables: those of the last comparison, and what became of the others."""

import pytest
from sqlalchemy import Engine

from consumers.reads import rollouts
from consumers.reads.skills import SkillLine, read_skills
from consumers.rebuild import rebuild
from events.learning import SkillsContrasted
from tests.consumers.cycling import Leading
from tests.consumers.diagnosis.test_skills import CLEAR, EQUAL, contrast


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


def test_a_comparison_of_earlier_rounds_changes_nothing(leading: Leading) -> None:
    leading.say(contrasted(5, "cancel_order"), "one")
    leading.say(contrasted(4, "get_order"), "two")
    assert lines(leading).keys() == {"cancel_order"}
