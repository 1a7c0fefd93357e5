"""Turn messages into token ids by a checkpoint's chat template, and parse ids as answers.

A conversation is rendered whole for every turn, as in vLLM, so that a policy is trained on the
prompts it is served. Special tokens split a text first; the pieces between them are encoded once
and cached, which changes no id (tested against the tokenizer). A special token that a message
spells is text (prompts/control_tokens.py); in a text for `encode` it is a token.

Tool calls are Hermes': `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several after
each other, text before them allowed. If one of them cannot be read, the whole answer is text. A
call that an aside quotes (envs/asides.py) is no call. Prompts leave asides out of earlier messages,
as clients that never see them do. Reasoning is left to the template.
"""

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from daemon.adapters.end_tokens import WrongEndToken, describe_absence, describe_other, read_end_ids
from daemon.engine.prompts.control_tokens import ControlTokens, encode_alone
from daemon.engine.prompts.marks import Conversation, Rendering
from envs.asides import CLOSING, OPENING, split_aside, write_aside
from events.errors import CheckpointFault
from events.json_text.guard import MAX_DEPTH, UnstorableJson, parse_arguments, parse_json
from events.messages import Message, ToolCall

_CALL_BEGINS: Final = "<tool_call>"
_CALL_ENDS: Final = "</tool_call>"
_BEGINS: Final = re.compile(rf"(?i:{OPENING})|{_CALL_BEGINS}")
_ASIDE_ENDS: Final = re.compile(CLOSING, re.IGNORECASE)
_PIECES: Final = 4096
"""Maximum number of cached pieces: enough for a hundred conversations of forty."""
_LONGEST_PIECE: Final = 32 << 10
"""Maximum characters of a piece that is cached."""
_WORD: Final = "answer"
"""Content of a sample answer, used to find how the template ends a turn."""
_COMPOSED: Final = 4
"""Maximum number of characters that a tokenizer composes into one (Unicode's NFC)."""


class NoTemplate(CheckpointFault):
    """The checkpoint has no chat template, or one that does not take these messages."""


class NoEndToken(CheckpointFault):
    """No answer of this checkpoint would end, because it has no end token."""


class Chat:
    """A tokenizer with its chat template."""

    def __init__(self, directory: Path) -> None:
        """Raise NoTemplate, NoEndToken, OSError."""
        loaded = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        self.tokenizer = cast(PreTrainedTokenizerFast, loaded)
        if not self.tokenizer.chat_template:
            raise NoTemplate(f"the tokenizer in {directory} has no chat template")
        self.ends = _ends(directory, self.tokenizer)
        """Tokens that end an answer."""
        self.shows_tools = "tools" in self._source
        """Whether the template renders the tools of a request."""
        backend = self.tokenizer.backend_tokenizer
        shrinks = _COMPOSED if backend.normalizer is not None else 1
        self.longest = max(map(len, backend.get_vocab())) * shrinks
        """Characters of text that one token can stand for."""
        added = backend.get_added_tokens_decoder().values()
        # Tokens that remove the spaces around them are left to the tokenizer.
        marks = [t.content for t in added if t.special and not (t.lstrip or t.rstrip)]
        plain = len(marks) == len(added)
        self._marks = re.compile(f"({'|'.join(map(re.escape, marks))})") if plain else None
        self._piece = lru_cache(_PIECES)(self._encode)
        self._controls_of = lru_cache(1)(self._find_controls)
        self._check_ends(directory)

    def _check_ends(self, directory: Path) -> None:
        """Raise NoEndToken without an end token, or if the template ends turns with another."""
        known = self.ends & set(self.tokenizer.get_vocab().values())
        written = self._find_turn_end()
        added = self.tokenizer.added_tokens_decoder
        special = [token for token in written if token in added and added[token].special]
        mark = self.text(special[:1]) or None
        if not known:
            raise NoEndToken(describe_absence(directory, mark, self.ends))
        if mark is not None and known.isdisjoint(written):
            configured = " or ".join(self.text([token]) for token in sorted(known))
            raise NoEndToken(describe_other(directory, configured, mark))

    def _find_turn_end(self) -> tuple[int, ...]:
        """Return the ids that the template writes after an answer; () if it refuses a plain one."""
        asked = {"role": "user", "content": "?"}
        try:
            answered = self._render([asked, {"role": "assistant", "content": _WORD}], (), False, {})
        except NoTemplate:
            return ()
        before, _, end = answered.text.rpartition(_WORD)
        return self.encode(end) if before else ()

    def prompt(
        self,
        messages: Sequence[Message] | Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        **variables: Any,
    ) -> tuple[int, ...]:
        """Return a prompt's ids; the template gets `variables`. Raise NoTemplate."""
        return self.encode_rendering(self.render_prompt(messages, tools, variables))

    def render_prompt(
        self,
        messages: Sequence[Message] | Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> Rendering:
        """Return the prompt as text that is not yet encoded. Raise NoTemplate."""
        return self._render(messages, tools, True, variables)

    def answer(
        self,
        messages: Sequence[Message] | Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        **variables: Any,
    ) -> tuple[int, ...]:
        """Return the ids that a model would write for the last message, end token included. Raise
        NoTemplate, also for a template that does not begin an answer as its prompt does."""
        before = self._render(messages[:-1], tools, True, variables)
        *_, last = messages
        if isinstance(last, Message) and last.aside:
            messages = [*map(_to_document, messages[:-1]), _with_aside(last)]
        whole = self._render(messages, tools, False, variables)
        written: tuple[int, ...] = ()
        if whole.text.startswith(before.text):
            written = self.encode_rendering(whole.cut(len(before.text)))
        end = next((place for place, token in enumerate(written) if token in self.ends), None)
        if end is None:
            raise NoTemplate(
                "the chat template does not write an answer after its own prompt and end it; "
                "supervised examples cannot be made with it"
            )
        return written[: end + 1]

    def _render(
        self,
        messages: Sequence[Message] | Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        begins_answer: bool,
        variables: Mapping[str, Any],
    ) -> Rendering:
        documents = list(map(_to_document, messages))
        conversation = Conversation(documents, list(map(dict, tools)), dict(variables))
        return self._controls.render(
            conversation, partial(self._apply, begins_answer=begins_answer)
        )

    def _apply(self, conversation: Conversation, begins_answer: bool = False) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(conversation.messages),
                tools=list(conversation.tools) or None,
                tokenize=False,
                add_generation_prompt=begins_answer,
                **conversation.variables,
            )
        # Any error of a template is blamed on these messages.
        except Exception as error:
            raise NoTemplate(f"the chat template does not take these messages: {error}") from error
        return cast(str, text)

    @property
    def _source(self) -> str:
        template: Any = self.tokenizer.chat_template
        return "".join(template.values()) if isinstance(template, dict) else template

    @property
    def _controls(self) -> ControlTokens:
        return self._controls_of(self._source)

    def _find_controls(self, source: str) -> ControlTokens:
        unknown = self.tokenizer.unk_token_id
        return ControlTokens(self.tokenizer.backend_tokenizer, source, self._apply, unknown)

    def encode_rendering(self, rendering: Rendering) -> tuple[int, ...]:
        """Return the ids of a conversation; special tokens spelled in its messages are text."""
        return tuple(self._controls.encode(rendering, self.encode))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text. Special tokens in it are encoded as such; none is added."""
        if self._marks is None:
            return tuple(self._encode(text))
        pieces = (piece for piece in self._marks.split(text) if piece)
        return tuple(chain.from_iterable(map(self._encode_piece, pieces)))

    def _encode_piece(self, piece: str) -> "array[int]":
        # Pieces of a megabyte would waste memory: they are not sent again and again.
        return (self._piece if len(piece) <= _LONGEST_PIECE else self._encode)(piece)

    def _encode(self, text: str) -> "array[int]":
        # An array takes a tenth of the memory of a tuple.
        return array("I", encode_alone(self.tokenizer.backend_tokenizer, text))

    def text(self, ids: Iterable[int]) -> str:
        """Return ids as text, special tokens included."""
        return cast(str, self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def message(self, ids: Sequence[int], number: int = 0) -> Message:
        """Return written ids as a message, its aside apart; `number` makes ids of calls unique."""
        message = parse_answer(self.read_text(ids), number)
        aside, visible = split_aside(message.text)
        if visible == message.text:
            return message
        return message.model_copy(update={"content": visible or None}).with_aside(aside)

    def read_text(self, ids: Sequence[int]) -> str:
        """Return written ids as text, without the end token."""
        end = len(ids) - 1 if ids and ids[-1] in self.ends else len(ids)
        return self.text(ids[:end])


def _ends(directory: Path, tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    """Return the end tokens of tokenizer and generation settings. Raise NoEndToken."""
    own = tokenizer.eos_token_id
    try:
        ids = read_end_ids(directory)
    except WrongEndToken as error:
        raise NoEndToken(str(error)) from error
    return frozenset([*ids, *([] if own is None else [cast(int, own)])])


def as_chat(message: Message) -> dict[str, Any]:
    """Return a message in OpenAI's format, arguments as objects, fields in wire.py's order."""
    document: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        document["tool_calls"] = list(map(_call_as_chat, message.tool_calls))
    if message.role == "assistant":
        document |= name_reasoning(message.reasoning)
    if message.tool_call_id is not None:
        document["tool_call_id"] = message.tool_call_id
    return document


def _call_as_chat(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    identity = {} if call.id is None else {"id": call.id}
    return {**identity, "type": "function", "function": function}


def name_reasoning(reasoning: str | None) -> dict[str, str]:
    """Return a message's reasoning under both names that chat templates read, as vLLM does."""
    return {} if reasoning is None else {"reasoning": reasoning, "reasoning_content": reasoning}


def _to_document(message: Message | Mapping[str, Any]) -> dict[str, Any]:
    return as_chat(message) if isinstance(message, Message) else _parse_message(message)


def _with_aside(message: Message) -> dict[str, Any]:
    assert message.aside, "only a message with an aside is written with one"
    written = write_aside(message.aside)
    content = f"{written}\n{message.text}" if message.text else written
    return as_chat(message.model_copy(update={"content": content}))


def _parse_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's message for templates; arguments that are no object stay as is."""
    document = {**message, "content": message.get("content") or ""}
    if calls := message.get("tool_calls"):
        document["tool_calls"] = [
            {**call, "function": _with_object(call.get("function") or {})} for call in calls
        ]
    return document


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": parse_arguments(function.get("arguments"))}


def parse_answer(text: str, number: int = 0) -> Message:
    """Return an answer as a message: its tool calls if all can be read, else plain text."""
    blocks = _find_calls(text)
    calls: list[ToolCall] = []
    for begin, end in blocks:
        written = text[begin + len(_CALL_BEGINS) : end - len(_CALL_ENDS)].strip()
        call = _call(written, f"call_{number}_{len(calls)}")
        if call is None:
            return Message(role="assistant", content=text)
        calls.append(call)
    # Only at its end: what stands before the first call may have been streamed already.
    content = _cut(text, blocks).rstrip() if calls else text
    return Message(role="assistant", content=content or None, tool_calls=tuple(calls))


def _find_calls(text: str) -> list[tuple[int, int]]:
    """Return where calls outside asides begin and end. Of a call and an aside, the first may quote
    the other; an aside that is never closed ends with the text."""
    blocks: list[tuple[int, int]] = []
    position = 0
    while opening := _BEGINS.search(text, position):
        if opening[0] == _CALL_BEGINS:
            end = text.find(_CALL_ENDS, opening.end())
            if end < 0:
                break  # and no later call is closed
            position = end + len(_CALL_ENDS)
            blocks.append((opening.start(), position))
        elif closing := _ASIDE_ENDS.search(text, opening.end()):
            position = closing.end()
        else:
            break
    return blocks


def _cut(text: str, blocks: Iterable[tuple[int, int]]) -> str:
    kept, position = [], 0
    for begin, end in blocks:
        kept.append(text[position:begin])
        position = end
    return "".join([*kept, text[position:]])


def _call(written: str, name: str) -> ToolCall | None:
    try:
        document = parse_json(written, MAX_DEPTH + 1)  # the call is a level around its arguments
    except UnstorableJson:
        return None
    match document:
        case {"name": str(tool), "arguments": dict() | None as arguments}:
            return ToolCall(name=tool, arguments=arguments or {}, id=name)
        case {"name": str(tool), "arguments": str(blank)} if not blank.strip():
            return ToolCall(name=tool, arguments={}, id=name)
    return None
