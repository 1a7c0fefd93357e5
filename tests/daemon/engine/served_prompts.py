"""What a client of a server keeps and sends, and the ids that the server reads of it."""

import json
from collections.abc import Sequence
from typing import Any

from daemon.engine.chat import Chat, NoTemplate
from daemon.engine.wire import ChatRequest, parse_body
from events.messages import Message

Json = dict[str, Any]


def keep(message: Message, field: str = "reasoning") -> Json:
    """Return a message as a client has it: OpenAI's fields, and the reasoning that came with it."""
    kept: Json = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        kept[field] = message.reasoning
    if message.tool_calls:
        kept["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        kept["tool_call_id"] = message.tool_call_id
    return kept


def serve(chat: Chat, messages: Sequence[Json], tools: Sequence[Json]) -> tuple[int, ...] | None:
    """Return the ids that the server reads; None where the template refuses the messages."""
    body = {"messages": list(messages), "tools": list(tools) or None}
    query = parse_body(ChatRequest, json.dumps(body).encode())
    sent = [message.for_template() for message in query.messages]
    try:
        return chat.encode_rendering(chat.render_prompt(sent, query.schemas(), {}))
    except NoTemplate:
        return None
