"""A tokenization such as a small model's: what the length of an episode of shop is measured in.

One token for each of: the policy, a piece of the chat template, a run of JSON between two values,
an entity, a word with the space before it, any other character. A space before an entity is a token
of its own, so that the entity is the same token in a sentence and in JSON.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from envs.shop.policy import POLICY
from envs.shop.tools import ShopTools
from envs.shop.vocabulary import POOLS
from events.messages import Message

_START = "<|im_start|>{role}\n"
_END = "<|im_end|>\n"
_CALL = '<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
_RESULT = "<tool_response>\n{result}\n</tool_response>"
_TEMPLATE = (
    POLICY,
    *(_START.format(role=role) for role in ("system", "user", "assistant")),
    _END,
    '<tool_call>\n{"name": "',
    "<tool_response>\n",
    "\n</tool_response>",
)
_ENTITY = rf"(?:{'|'.join(chain(*POOLS.values()))})(?!\w)"
_KEY = rf'"(?!{_ENTITY})\w+": [\[{{]*"'
_BETWEEN = rf'"[\]}}]*, {_KEY}|"[:,] "|"[\]}}]*(?:\n</tool_call>)?'
"""JSON from the end of one value to the start of the next, keys included."""
_TOKEN = re.compile(
    "|".join(
        [
            *map(re.escape, sorted(_TEMPLATE, key=len, reverse=True)),
            *map(re.escape, sorted(ShopTools.tools(), key=len, reverse=True)),
            rf'", "arguments": {{{_KEY}',
            rf"{{{_KEY}",
            _ENTITY,
            _BETWEEN,
            rf" (?={_ENTITY})",
            r" ?[A-Za-z]+",
            r"[\s\S]",
        ]
    )
)


@dataclass(frozen=True)
class Count:
    """The tokens of an episode."""

    tokens: tuple[str, ...]
    generated: tuple[str, ...]
    """Those that the agent wrote, the one that ends its message included."""


def tokens(text: str) -> list[str]:
    """The tokens of a text; together they are the text."""
    return _TOKEN.findall(text)


def count(messages: Sequence[Message]) -> Count:
    """The tokens of a transcript, with the system prompt in front."""
    spoken = [Message(role="system", content=POLICY), *_until_the_end(messages)]
    rendered = list(map(_rendered, spoken))
    everything = [tokens(start + body) for start, body in rendered]
    written = [
        tokens(body)
        for message, (_, body) in zip(spoken, rendered, strict=True)
        if message.role == "assistant"
    ]
    return Count(tuple(chain(*everything)), tuple(chain(*written)))


def _until_the_end(messages: Sequence[Message]) -> Iterator[Message]:
    """Without the sign that the user hung up: no model reads it."""
    return (message for message in messages if "###STOP###" not in message.text)


def _rendered(message: Message) -> tuple[str, str]:
    role = "user" if message.role == "tool" else message.role
    body = _RESULT.format(result=message.text) if message.role == "tool" else message.text
    body += "".join(_call(call.name, call.arguments) for call in message.tool_calls)
    return _START.format(role=role), body + _END


def _call(name: str, arguments: Mapping[str, Any] | str) -> str:
    return _CALL.format(name=name, arguments=json.dumps(arguments))
