"""How tau2's tools answer: texts, rendering, and calls that are wrong in themselves."""

from typing import Any

import pytest

from envs.database import Database
from envs.tau2.toolset import Tau2Toolset
from envs.tools import read, write


class LendingTools(Tau2Toolset):
    """A library in four tools."""

    @read
    def get_book(self, title: str, edition: int = 1) -> Any:
        """Look up one book."""
        return self.database["books"][title]

    @write
    def lend_book(self, title: str) -> None:
        """Lend it."""
        self.database.edit("books", title)["lent"] = True

    @read
    def fail(self) -> Any:
        """Fails inside, with the kind of exception that a wrong call has."""
        return len(5)  # type: ignore[arg-type]

    @read
    def say(self) -> str:
        """A text."""
        return "grün"


@pytest.fixture
def tools() -> LendingTools:
    return LendingTools(Database({"books": {"Ö": {"title": "Ö", "pages": 3, "lent": False}}}))


def test_a_record_is_json_in_ascii_and_a_text_stays_as_it_is(tools: LendingTools) -> None:
    assert tools.call("get_book", {"title": "Ö"}).content == (
        '{"title": "\\u00d6", "pages": 3, "lent": false}'
    )
    assert tools.call("say", {}).content == "grün"
    assert tools.call("lend_book", {"title": "Ö"}).content == "null"


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("burn_book", {}, "Tool 'burn_book' not found."),
        ("_run", {"name": "say"}, "Tool '_run' not found."),
        (
            "get_book",
            {},
            "LendingTools.get_book() missing 1 required positional argument: 'title'",
        ),
        (
            "get_book",
            {"title": "Ö", "shelf": 1},
            "LendingTools.get_book() got an unexpected keyword argument 'shelf'",
        ),
        (
            "calculate",
            {},
            "LendingTools.calculate() missing 1 required positional argument: 'expression'",
        ),
    ],
)
def test_a_call_that_does_not_bind_is_malformed(
    tools: LendingTools, name: str, arguments: dict[str, Any], text: str
) -> None:
    result = tools.call(name, arguments)
    assert (result.content, result.error, result.malformed) == (f"Error: {text}", True, True)
    assert result.defect is None


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("get_book", {"title": "none"}, "'none'"),
        ("get_book", {"title": ["Ö"]}, "unhashable type: 'list'"),
        ("fail", {}, "object of type 'int' has no len()"),
        ("calculate", {"expression": "1/0"}, "division by zero"),
    ],
)
def test_any_other_exception_is_an_answer_and_no_malformed_call(
    tools: LendingTools, name: str, arguments: dict[str, Any], text: str
) -> None:
    result = tools.call(name, arguments)
    assert (result.content, result.error, result.malformed) == (f"Error: {text}", True, False)
