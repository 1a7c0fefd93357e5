"""Redacts events: replaces each match of a rule by `[redacted:RULE]` in all text of an event.

If a rule matches in a call, no tokens are kept, because they would contain the text. All of the
request and the answer is searched, raw arguments and the tokens' text too. If there are rules, a
prompt of token ids is not written. A name by the client (session, user, task, idempotency key) that
a rule matches becomes a pseudonym. It stays the same as long as the home's salt does.

Guarantee: the client's answer and the engine's request never change; equal texts become equal
texts, so a call's link to its parent stays valid. Not covered: text that no rule matches, encoded
text (base64, percent signs, pictures), text in several messages, and cut-off text.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from events.canonical import exact_json
from events.json_text.size import find_excess
from events.messages import Message, ToolCall
from producers.gateway.http.wire import Json, ModelRequest
from producers.gateway.privacy.rules import Rule, Span
from producers.storable import readable

_MOST_ESCAPED: Final = 4
"""Most levels of nested escapes that are resolved in text that is not JSON as a whole."""

_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_RULES_WEIGHT: Final = 16

_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")
"""Maps digits to letters, so no rule for numbers can match a digest."""

_TOO_DEEP: Final = "it is nested too deeply for the redaction rules to be read"
_TOKEN_PROMPT: Final = "the redaction rules cannot read a prompt of token ids"


@dataclass(frozen=True, slots=True)
class RedactedRequest:
    """A request in redacted form, as it is recorded."""

    request: ModelRequest
    because: str | None
    """Why the call's tokens may not be kept; None if they may."""


class Redaction:
    """Redacts with the rules of a gateway."""

    def __init__(self, rules: Sequence[Rule] = (), salt: bytes = b"") -> None:
        self._rules = tuple(rules)
        self._salt = salt

    @property
    def active(self) -> bool:
        """Return whether there are rules."""
        return bool(self._rules)

    def weigh(self, size: int) -> int:
        """Return the work of redacting `size` bytes as a size for large_work.py."""
        return size * _RULES_WEIGHT if self._rules else 0

    def redact_request(self, request: ModelRequest) -> RedactedRequest:
        """Return a request in redacted form. A match in the model name alone keeps the tokens."""
        if not self._rules:
            return RedactedRequest(request, None)
        redactor = _Redactor(self._rules)
        try:
            document = dict(readable(request.document))
            model = (
                self.redact_text(model)
                if isinstance(model := document.pop("model", None), str)
                else None
            )
            unread = _take_token_prompt(document)
            safe = {**redactor.value(document), **({} if model is None else {"model": model})}
        except RecursionError:
            return RedactedRequest(replace(request, document={}), _TOO_DEEP)
        return RedactedRequest(replace(request, document=safe), redactor.because or unread)

    def redact_answer(
        self, messages: Iterable[Message], spoken: Iterable[str]
    ) -> tuple[tuple[Message, ...], str | None]:
        """Return an answer's redacted messages, and why its tokens may not be kept (None: they
        may). `spoken`: all other text of the answer."""
        redactor = _Redactor(self._rules)
        safe = tuple(redactor.message(message) for message in messages) if self._rules else messages
        for text in spoken if self._rules else ():
            redactor.text(text)
        return tuple(safe), redactor.because

    def redact_text(self, text: str) -> str:
        """Return a text in redacted form."""
        return _Redactor(self._rules).text(text) if self._rules else text

    def redact_name(self, name: str | None) -> str | None:
        """Return a name by the client, or its pseudonym if a rule matches."""
        if name is None or not self._rules:
            return name
        redactor = _Redactor(self._rules)
        if redactor.text(name) == name:
            return name
        digest = blake2b(name.encode(), key=self._salt, digest_size=10).hexdigest()
        return f"redacted-{sorted(redactor.matched)[0]}-{digest.translate(_LETTERS)}"


class _Redactor:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self.matched: set[str] = set()

    @property
    def because(self) -> str | None:
        names = ", ".join(sorted(self.matched))
        return f"redaction rules matched: {names}" if names else None

    def value(self, value: Any) -> Any:
        """Redact any JSON value; keys and numbers are text as well."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._redact_object(value)
        if isinstance(value, list):
            return self._redact_parts([self.value(item) for item in value])
        if isinstance(value, int | float) and not isinstance(value, bool):
            written = exact_json(value)
            return value if (safe := self.text(written)) == written else safe
        return value

    def text(self, text: str) -> str:
        """Redact a text, including JSON within it and JSON escapes."""
        text = self._redact_json(text if text.isascii() else str(readable(text)))
        safe = deeper = self._replace_matches(text)
        for _ in range(_MOST_ESCAPED):
            if "\\" not in deeper:
                break
            deeper = _resolve_escapes(deeper)
            if (replaced := self._replace_matches(deeper)) != deeper:
                safe = deeper = replaced
        return safe

    def message(self, message: Message) -> Message:
        safe = message.model_copy(
            update={
                "content": self.value(message.content),
                "reasoning": self.value(message.reasoning),
                "tool_calls": tuple(self._redact_tool_call(call) for call in message.tool_calls),
            }
        )
        return safe.with_aside(self.value(message.aside))

    def _redact_tool_call(self, call: ToolCall) -> ToolCall:
        return ToolCall(
            name=self.text(call.name), arguments=self.value(call.arguments), id=self.value(call.id)
        )

    def _redact_object(self, value: Mapping[str, Any]) -> Json:
        safe: Json = {}
        for name, item in value.items():
            # Keep both fields if redaction makes their names equal.
            unique = written = self.text(name)
            while unique in safe:
                unique = f"{written}#{len(safe)}"
            safe[unique] = self.value(item)
        return safe

    def _redact_parts(self, items: list[Any]) -> list[Any]:
        """Redact the text parts of one content as one text."""
        texts = [
            item for item in items if isinstance(item, dict) and isinstance(item.get("text"), str)
        ]
        if len(texts) < 2:
            return items
        whole = "".join(item["text"] for item in texts)
        if (safe := self.text(whole)) == whole:
            return items
        joined = set(map(id, texts))
        others = [item for item in items if id(item) not in joined]
        return [{**texts[0], "text": safe}, *others]

    def _redact_json(self, text: str) -> str:
        if text.lstrip()[:1] not in ("{", "[", '"') or find_excess(text) is not None:
            return text
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return text
        before = exact_json(parsed)
        safe = exact_json(self.value(parsed))
        return text if safe == before else safe

    def _replace_matches(self, text: str) -> str:
        pieces: list[str] = []
        at = 0
        for name, begin, end in self._find_matches(text):
            pieces += (text[at:begin], f"[redacted:{name}]")
            at = end
        return "".join((*pieces, text[at:])) if pieces else text

    def _find_matches(self, text: str) -> list[tuple[str, int, int]]:
        """Return the matches in order; overlapping ones are merged under the first rule."""
        merged: list[tuple[str, int, int]] = []
        for (begin, end), name in sorted(self._spans(text)):
            self.matched.add(name)
            if merged and begin < merged[-1][2]:
                first, start, reached = merged[-1]
                merged[-1] = first, start, max(reached, end)
            else:
                merged.append((name, begin, end))
        return merged

    def _spans(self, text: str) -> Iterable[tuple[Span, str]]:
        return ((span, rule.name) for rule in self._rules for span in rule.find(text))


def _take_token_prompt(document: Json) -> str | None:
    """Remove prompts of token ids from a request. If any, return why no tokens are kept."""
    prompt = document.get("prompt")
    if not isinstance(prompt, list):
        return None
    texts = [item for item in prompt if isinstance(item, str)]
    if len(texts) == len(prompt):
        return None
    document["prompt"] = texts
    return _TOKEN_PROMPT


def _resolve_escapes(text: str) -> str:
    plain = _ESCAPE.sub(_decode_escape, text)
    # Two escapes may be the surrogate halves of one character.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decode_escape(escape: re.Match[str]) -> str:
    number, short = escape.groups()
    return chr(int(number, 16)) if number else _SHORT_ESCAPES.get(short, short)
