"""Serve the embedded engine over HTTP: OpenAI's endpoints, and vLLM's for adapters.

    POST /v1/chat/completions   POST /v1/load_lora_adapter     GET /v1/models   GET /health
    POST /v1/completions        POST /v1/unload_lora_adapter   POST /tokenize   GET /version

Guarantees: one policy answers a whole request; no request ends another; generation stops when its
client disconnects. Every error has OpenAI's shape, also in a stream, which then ends without
`[DONE]`. Pages of other sites get no answer (guard.py). A prompt that cannot fit is refused before
it is encoded, and large requests do not block others. Not covered: keys and encryption. Run it
behind a gateway, because clients may load any directory of the machine as an adapter.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from daemon.adapters.directory import BadAdapter
from daemon.core.start_mark import headers
from daemon.engine.adapters import Adapters, NameConflict, NoSuchAdapter, UnknownModel
from daemon.engine.chat import Chat, NoTemplate
from daemon.engine.generation import BadRequest, Emission, Engine, RequestFailure
from daemon.engine.guard import Guard, check_command
from daemon.engine.policy import Policy
from daemon.engine.responses import (
    ChatFormat,
    Format,
    Step,
    TextFormat,
    TokenScore,
    encode_json,
    event,
    join_steps,
)
from daemon.engine.streaming import Answer, Delta, byte_tokens
from daemon.engine.thread import Call, EngineFailure, EngineThread
from daemon.engine.wire import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Json,
    LoadAdapter,
    TokenizeRequest,
    UnloadAdapter,
    bad_request,
    internal_error,
    parse_body,
    unknown_resource,
)
from events.errors import KintsugiError

MAX_BODY: Final = 32 << 20
"""Largest size of a request's body, in bytes."""
MAX_ADMIN_BODY: Final = 64 << 10
"""Largest size of a command's body (an adapter's name and path), in bytes."""

_SMALL: Final = 32 << 10
"""Largest size in bytes of a request that the event loop itself reads: a few milliseconds."""
_LARGE: Final = 256 << 10
"""Size in bytes above which requests are read and encoded one after the other."""

_logger = logging.getLogger(__name__)

_GONE: Final = 499
"""Status of a response to a client that has disconnected."""
_TOKENS: Final = 65_536

T = TypeVar("T")


class Server:
    """The HTTP application over a base with its adapters, a chat template and an engine."""

    def __init__(self, adapters: Adapters, chat: Chat, engine: Engine, local: bool = True) -> None:
        """With `local`, only this machine reaches the server, and Host must name this machine."""
        self.adapters = adapters
        self.chat = chat
        self.thread = EngineThread(engine)
        self._texts = Texts(chat)
        self._large = asyncio.Semaphore(1)
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
                Route("/health", self._health),
                Route("/version", _version),
            ],
            middleware=[Middleware(Guard, local=local)],
            exception_handlers=_HANDLERS,
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.thread.start()
        yield
        await self.thread.stop()

    async def _chat(self, request: HttpRequest) -> Response:
        body = await _body(request)
        query, policy, prompt = await self._apart(len(body), self._read_chat, body)
        form = ChatFormat(query, policy.name, prompt)
        scored = bool(query.logprobs)
        return await self._answer(request, query, policy, form, scored, query.reads_calls)

    def _read_chat(self, body: bytes) -> tuple[ChatRequest, Policy, tuple[int, ...]]:
        query = parse_body(ChatRequest, body)
        policy = self._policy(query)
        messages = [message.for_template() for message in query.messages]
        variables = query.chat_template_kwargs or {}
        prompt = self.chat.render_prompt(messages, query.schemas(), variables)
        self._check_length(prompt.text)
        return query, policy, self.chat.encode_rendering(prompt)

    async def _complete(self, request: HttpRequest) -> Response:
        body = await _body(request)
        query, policy, prompts = await self._apart(len(body), self._read_completion, body)
        form = TextFormat(query, policy.name, prompts)
        return await self._answer(request, query, policy, form, query.logprobs is not None, False)

    def _read_completion(
        self, body: bytes
    ) -> tuple[CompletionRequest, Policy, list[tuple[int, ...]]]:
        query = parse_body(CompletionRequest, body)
        policy = self._policy(query)
        prompts = query.prompts()
        for prompt in prompts:
            self._check_length(prompt)
        ids = [self.chat.encode(item) if isinstance(item, str) else tuple(item) for item in prompts]
        return query, policy, ids

    def _encode(self, text: str) -> tuple[int, ...]:
        self._check_length(text)
        return self.chat.encode(text)

    def _check_length(self, prompt: str | Sequence[int]) -> None:
        length = self.thread.length
        if isinstance(prompt, str):
            most, what = length * self.chat.longest, "characters"
        else:
            most, what = length, "input tokens"
        if len(prompt) > most:
            raise _too_long(length, f"{len(prompt)} {what}")

    async def _apart(self, size: int, work: Callable[[bytes], T], body: bytes) -> T:
        """Return `work(body)`. A large body (`size` in bytes) is worked on in another thread."""
        if size <= _SMALL:
            return work(body)
        if size <= _LARGE:
            return await asyncio.to_thread(work, body)
        # One at a time, because many at once would occupy every thread and processor.
        async with self._large:
            return await asyncio.to_thread(work, body)

    async def _answer(
        self,
        request: HttpRequest,
        query: GenerationRequest,
        policy: Policy,
        form: Format,
        scored: bool,
        tools: bool,
    ) -> Response:
        ends = self.chat.ends
        requests = [
            item
            for prompt in form.prompts
            for item in query.requests(prompt, self._room(prompt), ends)
        ]
        call = await _run_unless_disconnect(request, self.thread.submit(policy, requests))
        answers = Answers(self.thread, call, self._texts, query, scored, tools)
        if query.stream:
            return _EventStream(_stream(answers, form, query.include_usage), answers.close)
        steps = await _run_unless_disconnect(request, _whole(answers))
        return _json(form.response(steps))

    def _policy(self, query: GenerationRequest) -> Policy:
        return self._find_policy(query.model)

    def _find_policy(self, model: str | None) -> Policy:
        try:
            return self.adapters.policy(model)
        except UnknownModel as error:
            raise unknown_resource(str(error), "model") from error

    def _room(self, prompt: Sequence[int]) -> int:
        room = self.thread.length - len(prompt)
        if room < 1:
            raise _too_long(self.thread.length, f"{len(prompt)} input tokens")
        return room

    async def _models(self, _: HttpRequest) -> Response:
        base = self.adapters.base.name
        cards = [_card(base, self.adapters.root, None, self.thread.length)]
        cards += [
            _card(name, str(entry.folder), base, None)
            for name, entry in self.adapters.entries.items()
        ]
        return _json({"object": "list", "data": cards})

    async def _tokenize(self, request: HttpRequest) -> Response:
        body = await _body(request)
        return _json(await self._apart(len(body), self._read_tokens, body))

    def _read_tokens(self, body: bytes) -> Json:
        query = parse_body(TokenizeRequest, body)
        self._find_policy(query.model)
        tokens = self._encode(query.prompt)
        return {"count": len(tokens), "max_model_len": self.thread.length, "tokens": [*tokens]}

    async def _load(self, request: HttpRequest) -> Response:
        check_command(request)
        command = parse_body(LoadAdapter, await _body(request, MAX_ADMIN_BODY))
        if not command.lora_name or not command.lora_path:
            raise _bad_input("Both 'lora_name' and 'lora_path' must be provided.")
        try:
            await asyncio.to_thread(self.adapters.load, command.lora_name, Path(command.lora_path))
        except NameConflict as error:
            raise _bad_input(str(error)) from error
        except NoSuchAdapter as error:
            raise unknown_resource(str(error), "lora_path") from error
        except BadAdapter as error:
            raise bad_request(str(error), "lora_path") from error
        return PlainTextResponse(f"Success: LoRA adapter '{command.lora_name}' added successfully.")

    async def _unload(self, request: HttpRequest) -> Response:
        check_command(request)
        command = parse_body(UnloadAdapter, await _body(request, MAX_ADMIN_BODY))
        if not command.lora_name:
            raise _bad_input("'lora_name' needs to be provided to unload a LoRA adapter.")
        try:
            self.adapters.unload(command.lora_name)
        except UnknownModel as error:
            raise unknown_resource(str(error), "lora_name") from error
        return PlainTextResponse(
            f"Success: LoRA adapter '{command.lora_name}' removed successfully."
        )

    async def _health(self, _: HttpRequest) -> Response:
        return Response(status_code=200 if self.thread.failure is None else 503, headers=headers())


class Texts:
    """Turns token ids into the text that clients get."""

    def __init__(self, chat: Chat) -> None:
        backend = chat.tokenizer.backend_tokenizer
        self.special = frozenset(
            number for number, added in backend.get_added_tokens_decoder().items() if added.special
        )
        self.bytes = byte_tokens(backend.get_vocab().items())
        self.token = lru_cache(_TOKENS)(lambda token: chat.text((token,)))
        self._chat = chat

    def answer(self, query: GenerationRequest, tools: bool) -> Answer:
        """Return the converter of one answer's tokens into text."""
        # If calls are parsed, special tokens stay text, as in vLLM: some mark calls and thoughts.
        skips_special = query.skips_special and not tools
        # A skipped special token does not end a run of byte tokens.
        held = self.bytes | self.special if skips_special and self.bytes else self.bytes
        decode = self._visible if skips_special else self._chat.text
        return Answer(decode, byte_ids=held, stops=query.stops, tools=tools)

    def _visible(self, ids: Sequence[int]) -> str:
        return self._chat.text([token for token in ids if token not in self.special])


class Answers:
    def __init__(
        self,
        thread: EngineThread,
        call: Call,
        texts: Texts,
        query: GenerationRequest,
        scored: bool,
        tools: bool,
    ) -> None:
        self._thread = thread
        self._call = call
        self._scored = scored
        self._named = frozenset(query.stop_token_ids or ())
        self._token = _by_id if query.return_tokens_as_token_ids else texts.token
        self._answers = [texts.answer(query, tools) for _ in call.requests]

    async def steps(self) -> AsyncIterator[Step]:
        """Yield the answers' steps as they come. Raise ApiError, RequestFailure, EngineFailure."""
        try:
            async for parts in self._call:
                for number, own in groupby(sorted(parts, key=itemgetter(0)), itemgetter(0)):
                    if self._answers[number].finish is None:
                        yield self._step(number, [emission for _, emission in own])
        finally:
            self.close()

    def close(self) -> None:
        """Cancel the answers that are not complete; do nothing after the last step."""
        self._thread.cancel(self._call)

    def _step(self, number: int, emissions: Sequence[Emission]) -> Step:
        answer = self._answers[number]
        deltas: list[Delta] = []
        used: list[Emission] = []
        for emission in emissions:
            if answer.finish is not None:
                break
            self._check(emission)
            deltas += answer.take(emission.token, emission.finish)
            used.append(emission)
        if answer.stop_string is not None:
            self._thread.cancel(self._call, [number])
        return Step(
            number,
            tuple(deltas),
            tuple(emission.token for emission in used),
            tuple(self._score(emission) for emission in used) if self._scored else (),
            answer.finish,
            answer.stop_string or self._stop_token(used[-1]),
        )

    def _check(self, emission: Emission) -> None:
        if not math.isfinite(emission.logprob):
            name = self._call.policy.name
            raise internal_error(
                f"the model {name} computes no number ({emission.logprob}); unload it"
            )

    def _score(self, emission: Emission) -> TokenScore:
        top = tuple((self._token(token), logprob) for token, logprob in emission.top)
        return TokenScore(self._token(emission.token), emission.logprob, top)

    def _stop_token(self, emission: Emission) -> int | None:
        named = emission.finish == "stop" and emission.token in self._named
        return emission.token if named else None


class _EventStream(StreamingResponse):
    def __init__(self, events: AsyncIterator[bytes], done: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, then call `done`."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


def _by_id(token: int) -> str:
    """Return a token's name as vLLM writes it. It is unique; two tokens may have the same text."""
    return f"token_id:{token}"


async def _whole(answers: Answers) -> list[Step]:
    steps: dict[int, list[Step]] = {}
    async for step in answers.steps():
        steps.setdefault(step.number, []).append(step)
    return [join_steps(steps[number]) for number in sorted(steps)]


async def _stream(answers: Answers, form: Format, costs: bool) -> AsyncIterator[bytes]:
    written = 0
    try:
        for chunk in form.first_chunks():
            yield event(chunk)
        async for step in answers.steps():
            written += len(step.tokens)
            for chunk in form.chunks(step):
                yield event(chunk)
    # The status was sent already, so a stream can report an error only as its last event.
    except Exception as error:
        if not isinstance(error, KintsugiError):
            _logger.exception("an answer cannot be written")
        failure = error if isinstance(error, ApiError) else _build_error(error)
        yield event(failure.body)
        return
    if costs:
        yield event(form.cost(written))
    yield b"data: [DONE]\n\n"


async def _run_unless_disconnect(request: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client leaves."""
    tasks: tuple[asyncio.Task[T], asyncio.Task[None]] = (
        asyncio.create_task(work),
        asyncio.create_task(_wait_for_disconnect(request)),
    )
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_for_disconnect(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: HttpRequest, most: int = MAX_BODY) -> bytes:
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > most:
            raise ApiError(413, "BadRequestError", f"this request has at most {most:,} bytes")
    return bytes(read)


async def _version(_: HttpRequest) -> Response:
    return _json({"version": version("kintsugi")})


def _card(name: str, root: str, parent: str | None, length: int | None) -> Json:
    card: Json = {"id": name, "object": "model", "created": 0, "owned_by": "kintsugi"}
    return card | {"root": root, "parent": parent, "max_model_len": length}


def _too_long(length: int, size: str) -> ApiError:
    """Return the error for a prompt that is too long, in vLLM's words, which clients search for."""
    return bad_request(
        f"This model's maximum context length is {length} tokens. However, your request has "
        f"{size}. Please reduce the length of the input messages.",
        "input_tokens",
    )


def _bad_input(message: str) -> ApiError:
    return ApiError(400, "InvalidUserInput", message)


def _json(document: Json, status: int = 200) -> Response:
    return Response(encode_json(document), status, media_type="application/json")


def _refuse(_: HttpRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        kind = "NotFoundError" if error.status_code == 404 else "BadRequestError"
        error = ApiError(error.status_code, kind, error.detail)
    elif isinstance(error, BadRequest | NoTemplate):
        error = bad_request(str(error))
    elif not isinstance(error, ApiError):
        error = _build_error(error)
    return _json(error.body, error.status)


def _build_error(error: Exception) -> ApiError:
    return internal_error(str(error) or type(error).__name__)


def _ignore_disconnect(_: HttpRequest, __: Exception) -> Response:
    return Response(status_code=_GONE)


_HANDLERS: Final[dict[Any, Any]] = {
    **dict.fromkeys(
        (ApiError, BadRequest, NoTemplate, EngineFailure, RequestFailure, HTTPException), _refuse
    ),
    Exception: _refuse,
    ClientDisconnect: _ignore_disconnect,
}
