"""Removes asides, text that is not for the user (envs/asides.py), from a client's answer.
Guarantee: a document without asides is returned as the same object, so its bytes pass unchanged.
Not covered: token ids and log-probabilities that the client asked for still include asides."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from envs.asides import AsideSplitter, split_aside
from producers.gateway.http.wire import Json


class Asides(Protocol):
    """Removes the asides from one answer."""

    def take_from_whole(self, document: Json) -> Json:
        """Return a whole response without asides."""

    def take_from_chunk(self, document: Json) -> Sequence[Json]:
        """Return the chunks that the client gets in place of one chunk of the stream."""


class ChatAsides:
    """Removes asides from an answer in OpenAI's form; each choice may have some."""

    def __init__(self) -> None:
        self._splitters: defaultdict[int, AsideSplitter] = defaultdict(AsideSplitter)

    def take_from_whole(self, document: Json) -> Json:
        """Return a whole response without asides."""
        return self._replace_choices(document, lambda _, text, __: split_aside(text)[1])

    def take_from_chunk(self, document: Json) -> Sequence[Json]:
        """Return the chunk without asides, or () if nothing else is in it."""
        changed = self._replace_choices(document, self._feed)
        if changed is not document and _is_silent(changed):
            return ()
        return (changed,)

    def _feed(self, number: int, text: str, is_last: bool) -> str:
        splitter = self._splitters[number]
        return splitter.feed(text) + (splitter.close() if is_last else "")

    def _replace_choices(self, document: Json, replace: "_Replace") -> Json:
        choices = document.get("choices")
        if not isinstance(choices, list):
            return document
        replaced = [_replace_text(place, choice, replace) for place, choice in enumerate(choices)]
        if all(new is old for new, old in zip(replaced, choices, strict=True)):
            return document
        return {**document, "choices": replaced}


class MessagesAsides:
    """Removes asides from Anthropic's answers. A text block that only holds asides is left out,
    because clients may not send back blank texts. Later blocks are renumbered."""

    def __init__(self) -> None:
        self._splitters: dict[Any, AsideSplitter] = {}
        self._held: dict[Any, list[Json]] = {}
        """Index of a text block -> its events so far, held back until visible text comes."""
        self._hidden: set[Any] = set()
        self._left_out = 0

    def take_from_whole(self, document: Json) -> Json:
        """Return a whole response without asides and without blocks that only hold asides."""
        blocks = document.get("content")
        if not isinstance(blocks, list):
            return document
        visible = [_take_from_block(block) for block in blocks]
        if all(new is old for new, old in zip(visible, blocks, strict=True)):
            return document
        return {**document, "content": [block for block in visible if block is not None]}

    def take_from_chunk(self, document: Json) -> Sequence[Json]:
        """Return the client's events in place of one; a block's end releases its held text."""
        number = document.get("index")
        match document.get("type"):
            case "content_block_start":
                return self._renumber(self._begin(number, document))
            case "content_block_delta" if number in self._splitters:
                return self._renumber(self._feed(number, document))
            case "content_block_stop" if number in self._splitters:
                return self._renumber(self._end(number, document))
        return self._renumber((document,))

    def _begin(self, number: Any, document: Json) -> Sequence[Json]:
        block = document.get("content_block")
        if not isinstance(block, dict) or block.get("type") != "text":
            return (document,)
        self._splitters[number] = AsideSplitter()
        self._held[number] = []
        self._hidden.discard(number)
        text = block.get("text")
        if not isinstance(text, str):
            return self._pass_on(number, document, "")
        visible = self._splitters[number].feed(text)
        if visible == text:
            return self._pass_on(number, document, text)
        self._hidden.add(number)
        changed = {**document, "content_block": {**block, "text": visible}}
        return self._pass_on(number, changed, visible)

    def _feed(self, number: Any, document: Json) -> Sequence[Json]:
        delta = document.get("delta")
        text = delta.get("text") if isinstance(delta, dict) else None
        if not isinstance(delta, dict) or not isinstance(text, str):
            return (*self._held.pop(number, ()), document)
        visible = self._splitters[number].feed(text)
        if visible == text:
            return self._pass_on(number, document, text)
        self._hidden.add(number)
        if not visible:
            return ()
        return self._pass_on(number, {**document, "delta": {**delta, "text": visible}}, visible)

    def _end(self, number: Any, document: Json) -> Sequence[Json]:
        rest = self._splitters.pop(number).close()
        if number in self._held and number in self._hidden and not rest.strip():
            del self._held[number]
            self._left_out += 1
            return ()
        last = [_delta(number, rest)] if rest else []
        return (*self._held.pop(number, ()), *last, document)

    def _pass_on(self, number: Any, document: Json, visible: str) -> Sequence[Json]:
        """Return an event with the held events of its block before it; () while all is blank."""
        if number not in self._held:
            return (document,)
        self._held[number].append(document)
        return self._held.pop(number) if visible.strip() else ()

    def _renumber(self, documents: Sequence[Json]) -> Sequence[Json]:
        if not self._left_out:
            return documents
        return tuple(
            {**document, "index": document["index"] - self._left_out}
            if type(document.get("index")) is int
            else document
            for document in documents
        )


class _Replace(Protocol):
    def __call__(self, number: int, text: str, is_last: bool, /) -> str:
        """Return the visible part of a choice's text."""


def make_asides(endpoint: str) -> Asides:
    """Return the remover of asides for an endpoint."""
    return MessagesAsides() if endpoint == "messages" else ChatAsides()


def _replace_text(place: int, choice: Any, replace: _Replace) -> Any:
    if not isinstance(choice, dict):
        return choice
    index = choice.get("index")
    number = index if type(index) is int else place
    is_last = choice.get("finish_reason") is not None
    name = None
    if isinstance(choice.get("message"), dict):
        name = "message"
    elif isinstance(choice.get("delta"), dict):
        name = "delta"
    if name is None and "text" not in choice:
        if choice.get("delta") is not None:
            return choice  # a chunk's choice, which has no `text` or `message`
        # The last chunk of a chat may have no delta; add one for the text that was held back.
        name = "delta"
    holder, field = (choice, "text") if name is None else (choice.get(name) or {}, "content")
    text = holder.get(field)
    if not isinstance(text, str) and not (is_last and name != "message"):
        return choice
    before = text if isinstance(text, str) else ""
    visible = replace(number, before, is_last)
    if visible == before:
        return choice
    # An engine writes null content for a message that only calls tools.
    only_calls = name == "message" and not visible and bool(holder.get("tool_calls"))
    content = None if only_calls else visible
    return (
        {**choice, field: visible} if name is None else {**choice, name: {**holder, field: content}}
    )


def _is_silent(chunk: Json) -> bool:
    return chunk.get("usage") is None and all(map(_says_nothing, chunk["choices"]))


def _says_nothing(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return False
    if choice.get("logprobs") is not None or choice.get("token_ids") is not None:
        return False
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return not choice.get("text")
    return not any(value for name, value in delta.items())


def _take_from_block(block: Any) -> Any:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    if not isinstance(text, str) or (visible := split_aside(text)[1]) == text:
        return block
    return {**block, "text": visible} if visible.strip() else None


def _delta(number: Any, text: str) -> Json:
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": number, "delta": delta}
