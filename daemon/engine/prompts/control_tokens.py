"""Separate the control tokens that a chat template writes from message texts that spell them.

    controls = ControlTokens(backend, source, render)
    rendering = controls.render(conversation, render)
    ids = controls.encode(rendering, encode)

A tokenizer makes every spelled special token a token, so that `<|im_end|>` in a customer's text
would end the customer's message. A control token is a special token of the tokenizer, or another
added token with brackets that the template's source contains (`<tool_response>` of Qwen,
`<｜User｜>` of DeepSeek). Digits are put as marks into the messages' texts before the rendering
(marks.py). A control string with a mark inside began in a text; any other is the template's own.

Guarantees: if no text spells a control string, text and ids are those of template and tokenizer
alone. Otherwise no text is encoded as a control token, whether by added tokens, normalizer or
vocabulary. Only agents' own messages may hold the tokens that only agents write (`<tool_call>`) and
those that the template looks for in them (`</think>`), so that their ids stay the same.

Not covered: a template that puts a text inside a control token (`'<|' + message.name + '|>'`), and
one that cuts texts to a length, which may leave some digits of a mark in the prompt.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer

from daemon.engine.prompts.marks import Conversation, Rendering, choose_mark, put_mark, read_marks
from events.errors import CheckpointFault

_GUARD: Final = "\ue0f0guard\ue0f0"
"""Stands for the control token before a text: tokenizers treat a prompt's beginning specially."""
_SPACES: Final = re.compile(r"\s*")
_LONG: Final = 32 << 10
"""A text with more characters is encoded so that other threads can run meanwhile."""


Render = Callable[[Conversation], str]
"""Renders a conversation with the template. May raise CheckpointFault."""
Encode = Callable[[str], Sequence[int]]
"""Encodes a text in which control strings are control tokens."""


class ControlTokens:
    """The control tokens of a tokenizer with a chat template."""

    def __init__(
        self, backend: Tokenizer, source: str, render: Render, unknown: int | None
    ) -> None:
        """Use the template's `source`. `unknown` is the id for characters without a token."""
        added = backend.get_added_tokens_decoder()
        tokens = {number: token for number, token in added.items() if _is_control(token, source)}
        self._tokens = {token.content: token for token in tokens.values()}
        self._ids = tokens.keys() - {unknown}
        self._pattern = re.compile(_match_any(self._tokens))
        self._first = re.compile(_match_any({content[0] for content in self._tokens}))
        self._backend, self._source, self._probe = backend, source, render
        vocabulary = backend.get_vocab(with_added_tokens=False)
        self._is_loose = backend.normalizer is not None and any(
            token.normalized or content in vocabulary for content, token in self._tokens.items()
        )
        """Whether a text could become a control token without spelling it exactly."""

    def render(self, conversation: Conversation, render: Render) -> Rendering:
        """Return a conversation's rendering, with the marks' positions if texts spell tokens."""
        plain = Rendering(render(conversation))
        texts = conversation.join_texts()
        if self._first.search(texts) is None:
            return plain
        mark = choose_mark(texts)
        marked = read_marks(render(self._mark(conversation, mark)), mark)
        own, is_spelled = self._find_own(marked)
        if not is_spelled and _cut(marked.text, own) == _cut(plain.text, self._find_own(plain)[0]):
            return plain
        return marked

    def encode(self, rendering: Rendering, encode: Encode) -> Sequence[int]:
        """Return the ids of a rendering, by `encode` except for texts that spell control tokens."""
        if not rendering.marks and not self._is_loose:
            return encode(rendering.text)
        own, is_spelled = self._find_own(rendering)
        if not is_spelled:
            ids = encode(rendering.text)
            if self._count(ids) <= len(own):
                return ids
        return self._encode_apart(rendering.text, own, encode)

    def _mark(self, conversation: Conversation, mark: str) -> Conversation:
        def put(value: Any, before: re.Pattern[str]) -> Any:
            return put_mark(value, before, mark)

        return Conversation(
            [put(message, self._choose_first(message)) for message in conversation.messages],
            put(conversation.tools, self._first),
            put(conversation.variables, self._first),
        )

    def _choose_first(self, message: Mapping[str, Any]) -> re.Pattern[str]:
        return self._agents if message.get("role") == "assistant" else self._first

    @cached_property
    def _agents(self) -> re.Pattern[str]:
        """Pattern of first characters of control strings, but those that agents may write."""
        own = find_agent_tokens(self._tokens, self._source, self._probe)
        return re.compile(f"(?!{_match_any(own)}){self._first.pattern}")

    def _find_own(self, rendering: Rendering) -> tuple[list[tuple[int, int]], bool]:
        """Return (begin, end) of the template's control tokens, and whether a text spells one."""
        own: list[tuple[int, int]] = []
        position, is_spelled, marks = 0, False, rendering.marks
        while found := self._pattern.search(rendering.text, position):
            begin, position = found.span()
            place = bisect_right(marks, begin)
            if place < len(marks) and marks[place] < position:
                # Right after the mark, a control token of the template may begin.
                is_spelled, position = True, marks[place]
            else:
                own.append((begin, position))
        return own, is_spelled

    def _encode_apart(
        self, text: str, own: Iterable[tuple[int, int]], encode: Encode
    ) -> Sequence[int]:
        ids: list[int] = []
        done = 0
        for begin, end in self._find_gaps(text, own):
            if self._count(encode(text[begin:end])):
                ids += encode(text[done:begin])
                ids += self._encode_text(text[begin:end], begin > 0)
                done = end
        return [*ids, *encode(text[done:])]

    def _find_gaps(self, text: str, own: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of texts between control tokens, without spaces that these strip."""
        position = 0
        for begin, end in own:
            token = self._tokens[text[begin:end]]
            if token.lstrip:
                begin = position + len(text[position:begin].rstrip())
            yield position, max(position, begin)
            position = end
            if token.rstrip:
                position = next(_SPACES.finditer(text, end)).end()
        yield position, len(text)

    def _encode_text(self, text: str, is_inner: bool) -> list[int]:
        """Return the ids of a text, none of them a control token. If encoding gives one, cut each
        control string in two; if that does not help, encode every character separately."""
        ids: list[int] = []
        for parts in ([text], self._split(text), text):
            ids = []
            for number, part in enumerate(parts):
                ids += self._encode_part(part, is_inner or number > 0)
            if not self._count(ids):
                break
        return ids

    def _split(self, text: str) -> list[str]:
        begins = re.finditer(f"(?={self._pattern.pattern}|{_GUARD})", text)
        cuts = [0, *(begin.start() + 1 for begin in begins), len(text)]
        return [text[begin:end] for begin, end in pairwise(cuts) if begin < end]

    def _encode_part(self, text: str, is_inner: bool) -> Sequence[int]:
        if is_inner:
            return encode_alone(self._plain, _GUARD + text)[1:]
        return encode_alone(self._plain, text)

    @cached_property
    def _plain(self) -> Tokenizer:
        plain = Tokenizer.from_str(self._backend.to_str())
        plain.encode_special_tokens = True
        plain.add_tokens([AddedToken(_GUARD, normalized=False)])
        (guard,) = plain.encode(_GUARD, add_special_tokens=False).ids
        self._ids.add(guard)
        return plain

    def _count(self, ids: Iterable[int]) -> int:
        return sum(map(self._ids.__contains__, ids))


def encode_alone(backend: Tokenizer, text: str) -> Sequence[int]:
    """Return the ids of a text, without special tokens that the tokenizer would add around it."""
    if len(text) > _LONG:
        # `encode` holds the interpreter's lock until it is done; `encode_batch` releases it.
        (encoded,) = backend.encode_batch([text], add_special_tokens=False)
    else:
        encoded = backend.encode(text, add_special_tokens=False)
    return encoded.ids


def _is_control(token: AddedToken, source: str) -> bool:
    content = token.content
    if len(content) < 2 or content.isspace():
        return False
    in_brackets = not (content[0].isalnum() or content[-1].isalnum())
    return token.special or (in_brackets and content in source)


def _match_any(strings: Iterable[str]) -> str:
    alternatives = map(re.escape, sorted(strings, key=len, reverse=True))
    return f"(?:{'|'.join(alternatives) or '(?!)'})"


def _cut(text: str, places: Iterable[tuple[int, int]]) -> list[str]:
    return [text[begin:end] for begin, end in places]


def find_agent_tokens(tokens: Mapping[str, AddedToken], source: str, render: Render) -> set[str]:
    """Return the control tokens that an agent's message may spell. The template looks for them in
    the message, or they are non-special and it writes them only for reasoning and calls. None of
    them is in the rendering of a user's message, and no special one is in a plain answer's."""

    def show(*messages: dict[str, Any]) -> str:
        try:
            return render(Conversation(messages, (), {}))
        except CheckpointFault:
            return ""  # the template does not take such messages, and no conversation has them

    spelled = [content for content in tokens if content in source]
    asked, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": "x"}
    call = {"name": "x", "arguments": {}}
    calls = [{"type": "function", "id": "123456789", "function": call}]
    question, plain = show(asked), show(asked, answer)
    written = show(asked, answer | {"reasoning_content": "x"}) + show(
        asked, answer | {"tool_calls": calls}
    )

    def is_read(token: str) -> bool:
        halves = f"{token[0]}0{token[1:]}"
        for content in (f"x{token}x", f"x{'x'.join(spelled)}x"):
            for after in ((), (asked,)):
                read = show(asked, answer | {"content": content}, *after)
                marked = answer | {"content": content.replace(token, halves)}
                if show(asked, marked, *after).replace(halves, token) != read:
                    return True
        return False

    return {
        token
        for token in spelled
        if token not in question
        and not (tokens[token].special and token in plain)
        and (
            is_read(token)
            or (not tokens[token].special and token in written and token not in plain)
        )
    }
