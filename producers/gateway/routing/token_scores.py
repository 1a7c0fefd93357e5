"""Requests, in vLLM's form, for the log-probabilities of given tokens after a chat prompt; and
their answers. Pure. Not covered: engines without `logprob_token_ids` (vLLM before 0.32)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

TEMPLATE_VARIABLES: Final[Mapping[str, Any]] = {"enable_thinking": False}
"""Variables of the chat template that switch thinking off, so the answer begins at once."""
PLAIN_PROMPT: Final[Mapping[str, Any]] = {"chat_template_kwargs": dict(TEMPLATE_VARIABLES)}
"""Request fields for a prompt that has only messages and these variables."""
_PROMPT_FIELDS: Final = (
    "add_generation_prompt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "reasoning_effort",
    "tools",
)
"""Fields of a chat request that change its prompt, except the messages."""
_NO_TOOLS: Final = "none"

_BY_ID: Final = "token_id:"


def build_score_request(
    model: str | None,
    messages: Sequence[Mapping[str, Any]],
    tokens: Sequence[int],
    fields: Mapping[str, Any] = PLAIN_PROMPT,
) -> dict[str, Any]:
    """Return a chat request for the log-probabilities of `tokens` as an answer's first token.
    Without `model` it is for the engine's default model. `fields` also change the prompt."""
    return {
        **fields,
        **({} if model is None else {"model": model}),
        "messages": [dict(message) for message in messages],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "logprob_token_ids": list(tokens),
        "return_tokens_as_token_ids": True,
    }


def select_prompt_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat request's body that change its prompt, except the messages."""
    fields = {name: document[name] for name in _PROMPT_FIELDS if document.get(name) is not None}
    # With this tool_choice, an engine may leave the tools out of the prompt.
    refuses_tools = document.get("tool_choice") == _NO_TOOLS and "tools" in fields
    return fields | ({"tool_choice": _NO_TOOLS} if refuses_tools else {})


def read_token_scores(document: Any) -> dict[int, float]:
    """Return token id -> log-probability (nats) at an answer's first token; empty if unreadable."""
    try:
        first = document["choices"][0]["logprobs"]["content"][0]
        pairs = [(str(top["token"]), float(top["logprob"])) for top in first["top_logprobs"]]
        return {
            int(name.removeprefix(_BY_ID)): score
            for name, score in pairs
            if name.startswith(_BY_ID)
        }
    except (TypeError, KeyError, IndexError, ValueError):
        return {}
