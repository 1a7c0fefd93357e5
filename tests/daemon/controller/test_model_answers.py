"""What a request to a model is taken to cost."""

import pytest

from daemon.controller.model_answers import estimate_tokens
from events.messages import Message, ToolCall


@pytest.mark.parametrize(
    ("text", "least"),
    [("cancel my order " * 100, 500), ("\u53d6\u6d88\u8ba2\u5355" * 100, 400), ("\ud800" * 3, 1)],
)
def test_an_estimate_is_high_in_any_script(text: str, least: int) -> None:
    """A character of Chinese is about a token, and a word of English too."""
    assert estimate_tokens([Message(role="user", content=text)]) >= least
    call = ToolCall(name="note", arguments={"text": text})
    assert estimate_tokens([Message(role="assistant", tool_calls=(call,))]) >= least
