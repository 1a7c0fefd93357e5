"""A case's tools: what they answer, what a model may get wrong, and what two of them share."""

from collections.abc import Callable
from decimal import getcontext
from typing import Any

import pytest

from envs.bfcl.cases import Case
from envs.bfcl.tools import BfclTools, initial_state
from tests.envs.bfcl.files import CONFIG

pytestmark = pytest.mark.usefixtures("classes")

Make = Callable[..., BfclTools]


@pytest.fixture
def make() -> Make:
    """Tools over the given classes in their initial states."""

    def made(split: str = "base", **config: Any) -> BfclTools:
        case = Case("0", split, (), config or {**CONFIG, "MathAPI": {}, "TravelAPI": {}}, (), {})
        return BfclTools(initial_state(case))

    return made


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("ls", {}, '{"current_directory_content": ["notes.txt", "old"]}'),
        ("mkdir", {"dir_name": "new"}, "None"),
        ("mean", {"numbers": [2, 4]}, '{"result": 3.0}'),
        ("square_root", {"number": 2, "precision": 4}, "{'result': Decimal('1.414')}"),
    ],
)
def test_an_answer_is_written_as_bfcl_does(
    make: Make, name: str, arguments: dict[str, Any], content: str
) -> None:
    result = make().call(name, arguments)
    assert (result.content, result.error) == (content, False)


def test_a_refusal_is_an_error_of_a_call_that_fits(make: Make) -> None:
    result = make().call("cd", {"folder": "nowhere"})
    assert result.content.startswith('{"error": ')
    assert (result.error, result.malformed) == (True, False)


@pytest.mark.parametrize(
    ("name", "arguments", "content"),
    [
        ("paint", {}, "name 'paint' is not defined"),
        ("_load_scenario", {"scenario": {}}, "name '_load_scenario' is not defined"),
        ("__init__", {}, "name '__init__' is not defined"),
        ("cd", {}, "missing 1 required positional argument: 'folder'"),
        ("cd", {"folder": "old", "deep": 1}, "unexpected keyword argument 'deep'"),
        ("cd", "folder=old", "the arguments are not a JSON object: 'folder=old'"),
        ("mean", {"numbers": [float("nan")]}, "the arguments hold the number nan"),
        (
            "power",
            {"base": 9, "exponent": 10**9},
            "the arguments hold a value of exponent beyond 10,000",
        ),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}, "beyond 10,000"),
    ],
)
def test_a_call_that_is_wrong_in_itself_is_answered_with_an_error(
    make: Make, name: str, arguments: Any, content: str
) -> None:
    result = make().call(name, arguments)
    assert result.content.startswith("Error during execution: ")
    assert content in result.content
    assert (result.error, result.malformed, result.defect) == (True, True, None)


def test_an_exception_of_a_method_is_an_error_text(make: Make) -> None:
    result = make().call("power", {"base": 0, "exponent": -1})
    assert result.content == "Error during execution: 0.0 cannot be raised to a negative power"
    assert (result.error, result.malformed) == (True, False)


def test_the_precision_of_our_decimals_stays_as_it_was(make: Make) -> None:
    before = getcontext().prec
    assert not make().call("square_root", {"number": 2, "precision": before + 9}).error
    assert getcontext().prec == before


def test_what_a_tool_keeps_is_not_the_callers(make: Make) -> None:
    tools = make(TwitterAPI={"authenticated": True, "username": "ada"})
    tags = ["#tea"]
    tools.call("post_tweet", {"content": "Tea.", "tags": tags})
    tags.append("#bread")
    assert '["#tea"]' in tools.call("get_tweet", {"tweet_id": 0}).content


def test_toolsets_share_nothing_though_bfcls_classes_do(make: Make) -> None:
    """In the long context every traveller has the module's own credit cards."""
    first, second = make("long_context"), make("long_context")
    cards = first.objects["TravelAPI"].credit_card_list
    assert cards == second.objects["TravelAPI"].credit_card_list != {}
    for card in cards.values():
        card["balance"] = -1
    assert cards != second.objects["TravelAPI"].credit_card_list
    assert cards != make("long_context").objects["TravelAPI"].credit_card_list
