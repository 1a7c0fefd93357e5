"""A real HTTP server in the place of a model: OpenAI's protocol, answers by a function.

`ModelServer(answer)` calls `answer(body)` for each request of `/v1/chat/completions`; it returns a
`Reply`, or a message (a dict), which becomes the one choice of a good answer.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from envs.environment import Environment
from envs.task import TaskDefinition
from events.messages import Message, ToolCall

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What goes over the wire."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0
    """Seconds before anything is sent. They end when the server ends."""
    cut: bool = False
    """Whether the connection ends in the middle of the body."""


NO_ANSWER = Reply(b"{}", pause=600)
"""A reply for which every client gives up."""

Answering = Callable[[Json], Reply | Json]


def said(text: str) -> Json:
    """A message of words."""
    return {"role": "assistant", "content": text}


def called(name: Any, arguments: Any, id: Any = "call_1") -> Json:
    """A message that calls one tool; `arguments` that are text go out as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def answer(*messages: Json, **fields: Any) -> Reply:
    """A good answer with these choices."""
    body = {
        "choices": [
            {"index": place, "message": message, "finish_reason": "stop"}
            for place, message in enumerate(messages)
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    }
    return Reply(json.dumps({**body, **fields}).encode())


def refused(status: int, message: str, **headers: str) -> Reply:
    """An error in OpenAI's form."""
    return Reply(json.dumps({"error": {"message": message}}).encode(), status, headers)


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    """Connections that wait to be accepted; with the default of 5 a busy machine resets some."""


class ModelServer:
    """The server; a context manager. Requests are kept in the order of their arrival."""

    def __init__(self, answering: Answering, port: int = 0) -> None:
        """`port`: 0 takes a free one."""
        self.requests: list[Json] = []
        self.keys: set[str | None] = set()
        self.most_at_once = 0
        self.models = Reply(b'{"data": []}')
        """What a GET is answered with."""
        self._now = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._server = _Listening(("127.0.0.1", port), self._handler(answering))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self, answering: Answering) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are two writes

            def do_GET(self) -> None:
                self._send(server.models)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with server._lock:
                    server.requests.append(body)
                    server.keys.add(self.headers.get("authorization"))
                    server._now += 1
                    server.most_at_once = max(server.most_at_once, server._now)
                try:
                    reply = answering(body)
                    self._send(reply if isinstance(reply, Reply) else answer(reply))
                finally:
                    with server._lock:
                        server._now -= 1

            def _send(self, reply: Reply) -> None:
                server._ended.wait(reply.pause)
                try:
                    self.send_response(reply.status)
                    for name, value in reply.headers.items():
                        self.send_header(name.replace("_", "-"), value)
                    self.send_header("content-length", str(len(reply.body)))
                    self.end_headers()
                    half = len(reply.body) // 2
                    self.wfile.write(reply.body[:half] if reply.cut else reply.body)
                except ConnectionError:
                    self.close_connection = True  # the client has had enough
                if reply.cut:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        return Handler


def messages_of(body: Json) -> list[Message]:
    """The messages of a request in our form."""
    return [_message(one) for one in body["messages"]]


def oracle(environment: Environment, tasks: Sequence[TaskDefinition]) -> Answering:
    """Plays the environment's oracle; which task it is, the user's first message tells."""
    by_opening = {
        task.script.opening: environment.oracle(task) for task in tasks if task.script is not None
    }
    assert len(by_opening) == len(tasks), "two tasks open with the same words"

    def answering(body: Json) -> Json:
        messages = messages_of(body)
        opening = next(message.text for message in messages if message.role == "user")
        return on_the_wire(by_opening[opening].reply(messages))

    return answering


def _message(raw: Json) -> Message:
    calls = tuple(
        ToolCall(
            name=call["function"]["name"],
            arguments=json.loads(call["function"]["arguments"]),
            id=call["id"],
        )
        for call in raw.get("tool_calls") or ()
    )
    return Message(
        role=raw["role"],
        content=raw["content"],
        tool_calls=calls,
        tool_call_id=raw.get("tool_call_id"),
    )


def on_the_wire(message: Message) -> Json:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content, "tool_calls": calls or None}
