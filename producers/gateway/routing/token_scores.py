"""The log-probabilities of named tokens after a chat prompt, in vLLM's protocol (pure).

    body = build_score_request("small", messages, (32, 33))     for POST /chat/completions
    scores = read_token_scores(document)                          token id -> nats

Not covered: engines without `logprob_token_ids` (vLLM before 0.32), of which nothing is read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from producers.gateway.routing.label_router import TEMPLATE_VARIABLES

_BY_ID: Final = "token_id:"
"""How an engine names a token that is told by its id."""


def build_score_request(
    model: str | None, messages: Sequence[Mapping[str, Any]], tokens: Sequence[int]
) -> dict[str, Any]:
    """Return the body of a chat request for the scores of tokens as the first one of the answer;
    without a model, the engine's own answers."""
    return {
        **({} if model is None else {"model": model}),
        "messages": [dict(message) for message in messages],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "logprob_token_ids": list(tokens),
        "return_tokens_as_token_ids": True,
        "chat_template_kwargs": dict(TEMPLATE_VARIABLES),
    }


def read_token_scores(document: Any) -> dict[int, float]:
    """Return token id -> log-probability, in nats, of what an answer reports of its first token;
    empty where it reports nothing that can be read."""
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
