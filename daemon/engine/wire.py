"""Parse clients' requests: OpenAI's protocol, with the fields of vLLM that we use.

Guarantee: a request is answered as it asks, or refused. An unsupported field that would change the
answer is an error with its name, unless its value asks for nothing. Fields that change no answer
are dropped. Not covered: images, sound, constrained output, penalties, beams.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from daemon.engine.chat import name_reasoning
from daemon.engine.generation import Request
from events.errors import KintsugiError
from events.json_text.size import JsonSize, find_excess
from events.registry import describe_problem

_HARMLESS: Final = frozenset(
    {
        "cache_salt",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "user",
    }
)

_NEUTRAL: Final[Mapping[str, Any]] = {
    "add_generation_prompt": True,
    "best_of": 1,
    "include_reasoning": True,
    "length_penalty": 1,
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "repetition_penalty": 1,
    "response_format": {"type": "text"},
    "spaces_between_special_tokens": True,
}
"""Unsupported field -> value that asks for nothing. Other fields: null, false, 0 or empty."""

_MEANT_WHEN_EMPTY: Final = frozenset(
    {"do_sample", "thinking_token_budget", "truncate_prompt_tokens"},
)
"""Unsupported fields for which false or 0 does ask for something."""

_RESERVED: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that a client may not set as variables of the chat template."""

MAX_CHOICES: Final = 128
"""Largest number of answers to one prompt."""
MAX_ANSWERS: Final = 1024
"""Largest number of answers to one request, which may hold many prompts."""
MAX_TOP_LOGPROBS: Final = 20
MAX_LOGPROB_TOKEN_IDS: Final = 64
"""Largest number of tokens that a client may name to get their log-probabilities."""
MAX_MESSAGES: Final = 1 << 16
"""Largest number of messages in a conversation; each one takes at least one token."""
MAX_STOPS: Final = 64
"""Largest number of stop strings; each one is searched for after every token."""
MAX_STOP_CHARACTERS: Final = 256
MAX_STOP_TOKENS: Final = 1024
MAX_NAME: Final = 256
"""Largest number of characters in a model's name."""
MAX_PATH: Final = 4096
"""Largest number of characters in a path, as on Linux."""


def _check_number(value: Any) -> Any:
    """Raise PydanticCustomError for booleans and quoted digits, which pydantic takes as numbers."""
    if isinstance(value, bool | str):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


# Each number in a request is limited to the range of the type that the engine computes with.
_NUMBER: Final = BeforeValidator(_check_number)
_Count = Annotated[int, Field(ge=1, lt=2**31), _NUMBER]
_Likeliest = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), _NUMBER]
_TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
_ModelName = Annotated[str, Field(max_length=MAX_NAME)]
MAX_JSON: Final = JsonSize(values=500_000, containers=30_000, keys=100_000)
"""Largest size of a request's JSON; pydantic copies refused content into errors several times."""

Json = dict[str, Any]


class ApiError(KintsugiError):
    """An error that is answered to the client, in OpenAI's shape."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    @property
    def body(self) -> Json:
        """JSON body of the error response."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Return the error for a fault in the client's request (status 400)."""
    return ApiError(400, "BadRequestError", message, param)


def unknown_resource(message: str, param: str | None = None) -> ApiError:
    """Return the error for an unknown name of a model or adapter (status 404)."""
    return ApiError(404, "NotFoundError", message, param)


def internal_error(message: str) -> ApiError:
    """Return the error for a fault of the engine (status 500)."""
    return ApiError(500, "InternalServerError", message)


class Wire(BaseModel):
    """Base class of requests: numbers are finite, and unknown fields may not ask for anything."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _nothing_else(self) -> Self:
        for name, value in (self.__pydantic_extra__ or {}).items():
            if not _says_nothing(name, value):
                got = str(value)[:80]
                raise ValueError(f"{name} is not supported by this engine (got {got!r})")
        return self


def _says_nothing(name: str, value: Any) -> bool:
    if value is None or name in _HARMLESS:
        return True
    if name in _NEUTRAL:
        return bool(value == _NEUTRAL[name])
    return not value and name not in _MEANT_WHEN_EMPTY


class _Echo(BaseModel):
    """Part of an earlier answer that clients send back; its unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class _Function(_Echo):
    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] | None = None


class _Call(_Echo):
    id: str | None = None
    type: Literal["function"] = "function"
    function: _Function


class ChatMessage(Wire):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[_Call], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> Json:
        """Return the message as chat templates read it. Raise ApiError for content but text."""
        document: Json = {"role": self.role, "content": self._content()}
        if self.tool_calls:
            document["tool_calls"] = [
                call.model_dump(exclude_none=True) for call in self.tool_calls
            ]
        reasoning = self.reasoning_content if self.reasoning is None else self.reasoning
        document |= name_reasoning(reasoning)
        extra = {"name": self.name, "tool_call_id": self.tool_call_id}
        return document | {name: value for name, value in extra.items() if value is not None}

    def _content(self) -> str:
        if isinstance(self.content, list):
            return "".join(map(_text, self.content))
        return self.content or ""


def _text(part: Json) -> str:
    text = part.get(str(part.get("type")))
    if part.get("type") not in ("text", "refusal") or not isinstance(text, str):
        raise bad_request(
            f"messages hold a content part of type {str(part.get('type'))[:80]!r}; this engine "
            "reads text only",
            "messages",
        )
    return text


class _ToolFunction(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    strict: Any = None

    @model_validator(mode="after")
    def _has_no_grammar(self) -> Self:
        if self.strict not in (None, False):
            raise ValueError(
                f"tool {self.name[:80]!r} has strict={str(self.strict)[:20]}, and this engine has "
                "no grammars; leave strict out"
            )
        return self


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["function"]
    function: _ToolFunction


class _StreamOptions(Wire):
    include_usage: bool | None = None


class GenerationRequest(Wire):
    """Fields that chat and text completions have in common."""

    model: _ModelName | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), _NUMBER] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), _NUMBER] | None = None
    temperature: Annotated[float, Field(ge=0, le=100), _NUMBER] | None = None
    top_p: Annotated[float, Field(gt=0, le=1), _NUMBER] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31), _NUMBER] | None = None
    """Number of likeliest tokens to draw from; 0 and -1: all tokens."""
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: (
        Annotated[list[_TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None
    ) = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "" in self.stops:
            raise ValueError("stop holds an empty text, which is everywhere")
        if (
            len(self.stops) > MAX_STOPS
            or max(map(len, self.stops), default=0) > MAX_STOP_CHARACTERS
        ):
            raise ValueError(
                f"stop holds {len(self.stops)} texts; at most {MAX_STOPS} of "
                f"{MAX_STOP_CHARACTERS} characters are looked for"
            )
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream=true")
        return self

    @property
    def choices(self) -> int:
        """Number of answers to each prompt."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def skips_special(self) -> bool:
        """Whether the answer's text leaves out special tokens."""
        return self.skip_special_tokens is not False

    @property
    def include_usage(self) -> bool:
        """Whether the stream's last chunk has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def requests(self, prompt: tuple[int, ...], room: int, ends: frozenset[int]) -> list[Request]:
        """Return an engine request for each answer to `prompt`. The seed grows by 1 from answer to
        answer, as in vLLM. `room` tokens are left for an answer; `ends` end it. Raise ApiError."""
        stop = frozenset(self.stop_token_ids or ()) | (frozenset() if self.ignore_eos else ends)
        return [
            Request(
                prompt=prompt,
                max_tokens=self.tokens(len(prompt), room),
                temperature=1.0 if self.temperature is None else self.temperature,
                top_p=1.0 if self.top_p is None else self.top_p,
                top_k=max(self.top_k or 0, 0),
                seed=None if self.seed is None else self.seed + choice,
                stop=stop,
                top_logprobs=self.likeliest,
                logprob_token_ids=self.label_tokens,
            )
            for choice in range(self.choices)
        ]

    def tokens(self, prompt: int, room: int) -> int:
        """Return the answer's token limit. Raise ApiError if the client's exceeds the context."""
        asked, length = self.token_limit, prompt + room
        if asked is not None and asked > length:
            raise bad_request(
                f"max_tokens={asked} cannot be greater than max_model_len={length}. Please "
                "request fewer output tokens.",
                "max_tokens",
            )
        return room if asked is None else min(asked, room)

    @property
    @abstractmethod
    def token_limit(self) -> int | None:
        """Largest number of tokens that the client wants; None for as many as fit."""

    @property
    @abstractmethod
    def likeliest(self) -> int:
        """Number of likeliest tokens to report with each written token."""

    @property
    def label_tokens(self) -> tuple[int, ...]:
        """Ids of tokens to report instead of the likeliest; empty if the client names none."""
        return ()


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: _Likeliest | None = None
    logprob_token_ids: (
        Annotated[list[_TokenId], Field(max_length=MAX_LOGPROB_TOKEN_IDS, fail_fast=True)] | None
    ) = None
    """Tokens to report as `top_logprobs` of each token, instead of the likeliest, as in vLLM."""
    tools: Annotated[list[_Tool], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _of_chat(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true")
        if self.logprob_token_ids and not self.logprobs:
            raise ValueError("logprob_token_ids needs logprobs=true")
        if self.tool_choice == "auto" and not self.tools:
            raise ValueError("tool_choice is 'auto' and there are no tools")
        if reserved := sorted(_RESERVED & (self.chat_template_kwargs or {}).keys()):
            raise ValueError(f"chat_template_kwargs may not set {reserved[0]}")
        return self

    @property
    def token_limit(self) -> int | None:
        """Value of `max_completion_tokens` if it is set, else of `max_tokens`, its older name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def likeliest(self) -> int:
        """Number of likeliest tokens to report for each token."""
        return self.top_logprobs or 0

    @property
    def label_tokens(self) -> tuple[int, ...]:
        """Ids of tokens to report instead of the likeliest; empty if the client names none."""
        return tuple(self.logprob_token_ids or ())

    @property
    def reads_calls(self) -> bool:
        """Whether tool calls in the answer are parsed. The prompt shows the tools in any case."""
        return bool(self.tools) and self.tool_choice != "none"

    def schemas(self) -> list[Json]:
        """Return the tools' JSON as the client sent it."""
        return [tool.model_dump(exclude_unset=True) for tool in self.tools or ()]


_Item = TypeVar("_Item")
# The first wrong item ends the validation, since a million errors would take minutes.
_Ids = Annotated[list[_TokenId], Field(fail_fast=True)]
_Several = Annotated[list[_Item], Field(max_length=MAX_ANSWERS, fail_fast=True)]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: str | _Ids | _Several[str] | _Several[_Ids]
    max_tokens: _Count | None = None
    logprobs: _Likeliest | None = None

    @property
    def token_limit(self) -> int | None:
        """Value of `max_tokens`, or OpenAI's default of 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def likeliest(self) -> int:
        """Number of likeliest tokens to report for each token."""
        return self.logprobs or 0

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each a text or a list of ids. Raise ApiError for none or too many."""
        prompts: list[Any] = [self.prompt] if isinstance(self.prompt, str) else [*self.prompt]
        if prompts and isinstance(prompts[0], int):
            prompts = [prompts]
        if not 0 < len(prompts) * self.choices <= MAX_ANSWERS:
            raise bad_request(
                f"prompt holds {len(prompts)} prompts, for {self.choices} answers each; a request "
                f"may ask for 1 to {MAX_ANSWERS} answers",
                "prompt",
            )
        return prompts


class TokenizeRequest(Wire):
    """POST /tokenize: the text to encode is `prompt`."""

    model: _ModelName | None = None
    prompt: str
    add_special_tokens: Literal[False]
    """Must be false: this engine adds no special tokens, and vLLM adds them by default."""


class LoadAdapter(Wire):
    """POST /v1/load_lora_adapter."""

    lora_name: str | None = None
    lora_path: Annotated[str, Field(max_length=MAX_PATH)] | None = None

    @model_validator(mode="after")
    def _is_name(self) -> Self:
        name = self.lora_name or "name"
        parts = name.split("/")
        if len(name) > MAX_NAME or not name.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
            raise ValueError(
                f"lora_name is {name[:80]!r}; a name has at most {MAX_NAME} printable characters "
                "and no part '.' or '..'"
            )
        if "\0" in (self.lora_path or ""):
            raise ValueError(f"lora_path holds a zero byte: {self.lora_path!r}")
        return self


class UnloadAdapter(Wire):
    """POST /v1/unload_lora_adapter."""

    lora_name: str | None = None
    lora_int_id: Annotated[int, Field(ge=-(2**63), lt=2**63), _NUMBER] | None = None
    """A field of vLLM that is ignored, since the name is enough."""


M = TypeVar("M", bound=Wire)


def parse_body(model: type[M], body: bytes) -> M:
    """Return a request's body as the model. Raise an ApiError that names its first fault."""
    if (excess := find_excess(body, most=MAX_JSON)) is not None:
        raise bad_request(f"the body holds {excess}, which is the most that is taken; send less")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False)
        if first["type"] == "value_error":
            raise bad_request(first["msg"].removeprefix("Value error, ")) from error
        field = str(first["loc"][0]) if first["loc"] else None
        # If a field may have several types, the deepest error belongs to the best matching one.
        same = [other for other in rest if other["loc"][:1] == first["loc"][:1]]
        deepest = max([first, *same], key=lambda problem: len(problem["loc"]))
        raise bad_request(describe_problem(deepest), field) from error
