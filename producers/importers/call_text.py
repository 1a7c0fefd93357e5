"""Calls that a model wrote as text, as models of the Berkeley Function-Calling Leaderboard do.

Notations: Python (`[f(a=1), g()]`), JSON (`{"name": "f", "arguments": {}}`, a list of these, or
`{"f": {}}`), XML (`<functions>`), a name before its arguments (`<function=f>{}</function>`,
`[TOOL_CALLS]f[ARGS]{}`), and expressions of Java and JavaScript. A call is on lines of its own, in
a fenced block, or after a tag such as `<tool_call>`. A text that begins like a call but cannot be
parsed becomes a call with that text as arguments. Any other text has no call.

Guarantees: the text is parsed and never run; parsing takes linear time and never raises. Not
covered: a call in Python or XML of more than `MAX_CHARACTERS` counts as malformed.
"""

import ast
import json
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import dropwhile, islice
from typing import Any, Final, NoReturn
from xml.etree import ElementTree

from events.canonical import exact_json
from events.json_text.guard import parse_arguments
from events.messages import ToolCall
from producers.storable import Unusable, check_storable, readable

MAX_CHARACTERS: Final = 1 << 15
"""Longest text for the parsers of Python and XML, because their trees take much memory."""

_MAX_NAME: Final = 100
_MAX_STARTS: Final = 4
"""Most lines that are tried as the start of calls; each may cost a scan of the text."""
_FENCE: Final = "```"
_XML: Final = "<functions>"
_FUNCTION: Final = "<function="
_TAGS: Final = {
    "<tool_call>": "</tool_call>",
    "<tool_calls>": "</tool_calls>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|tool_call|>": "<|/tool_call|>",
    "<function_call>": "</function_call>",
    "[TOOL_CALLS]": "[/TOOL_CALLS]",
    "<|python_tag|>": "<|eom_id|>",
    "<|plugin|>": "<|action_end|>",
    "<|tool_call_begin|>": "<|tool_call_end|>",
    "<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>",
    "<function_calls>": "</function_calls>",
    _XML: "</functions>",
    _FUNCTION: "</function>",
}
"""Tag that opens a call -> tag that closes it."""
_SEPARATORS: Final = ("[CALL_ID]", "[ARGS]", "<|tool_call_argument_begin|>", "<｜tool▁sep｜>")
"""Tokens between the name of a call and its arguments."""
_ENDS: Final = ("|>", "｜>", "</s>")
"""Last characters of end tokens, which some servers leave in an answer's text."""
_MAX_ENDS: Final = 4
_NAMES: Final = ("name", "function", "function_name", "tool_name", "tool")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "params", "input")
_OTHER_KEYS: Final = frozenset({"id", "type", "index"})
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_BLANK: Final = " \t\r\n"


def parse_calls(text: str, *, literal: bool = True) -> list[ToolCall]:
    """Return the calls of an answer in any notation; [] for prose. With `literal` False, values are
    expressions of Java or JavaScript and stay text."""
    answer = _drop_end(text.rpartition("</think>")[2]).strip().removeprefix("functools")
    for opening, closing in _TAGS.items():
        if opening in answer:
            bodies = [body.partition(closing)[0] for body in answer.split(opening)[1:]]
            return [call for body in bodies for call in _read_tagged(opening, body, literal)]
    parts = answer.split(_FENCE)
    blocks = (_drop_language(block) for block in parts[1::2])
    fenced = [call for block in blocks for call in _read_notation(block, literal)]
    return fenced or _read_lines("".join(parts[::2]).partition("<think>")[0], literal)


def _drop_end(text: str) -> str:
    body = text.rstrip()
    for _ in range(_MAX_ENDS):
        start = body.rfind("<", -_MAX_NAME)
        if start < 0 or not body.endswith(_ENDS) or body[start:] in _TAGS:
            break
        body = body[:start].rstrip()
    return body


def parse_call(text: str, *, literal: bool = True) -> ToolCall:
    """Return the call in a text. A malformed call gets its name and the rest as text."""
    if not literal:
        name, opening, rest = text.strip().partition("(")
        if opening and rest.endswith(")") and _is_name(name):
            return ToolCall(name=name, arguments=parse_arguments(_read_expressions(f"({rest}")))
    body = _parse_expression(text)
    return _from_node(body) if isinstance(body, ast.Call) else _mark_malformed(text)


def to_call(value: Any) -> ToolCall | None:
    """Return the call `{"name": "f", "arguments": {}}` (also in `function`) or `{"f": {}}`, else
    None."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    call = inner if isinstance(inner, dict) else value
    name = next((key for key in _NAMES if _is_name(call.get(key))), None)
    arguments = next((key for key in _ARGUMENTS if key in call), None)
    if name is not None and call.keys() <= {name, arguments, *_OTHER_KEYS}:
        return _make_call(call[name], {} if arguments is None else call[arguments])
    if len(value) == 1:
        ((key, content),) = value.items()
        whole = parse_arguments(content) if isinstance(content, str | dict) else None
        if _is_name(key) and key not in _ARGUMENTS and isinstance(whole, dict):
            return _make_call(key, whole)
    return None


def _make_call(name: str, arguments: Any) -> ToolCall:
    # Via text, arguments that JSON cannot hold count as malformed.
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(name=name, arguments=parse_arguments(text))


def _mark_malformed(text: str) -> ToolCall:
    """Return a malformed call with the name, if any can be found, and the rest as text."""
    body = text.lstrip()
    if body[:1] in ("{", "["):
        after = body.replace("'", '"').partition('"name"')[2].lstrip(_BLANK + ":").lstrip('"')
        name = after[: _MAX_NAME + 1].partition('"')[0]
        return ToolCall(name=name if _is_name(name) else "", arguments=text)
    head = body[:_MAX_NAME].partition("(")[0].split(maxsplit=1)
    if not head or body.startswith(("(", "<")):
        return ToolCall(name="", arguments=text)
    return ToolCall(name=head[0], arguments=body[len(head[0]) :].lstrip())


def _is_name(value: Any) -> bool:
    """Return whether a value is a function name: letters, digits and `._-`, no digit first."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _MAX_NAME
        and not value[0].isdigit()
        and all(sign.isalnum() or sign in "._-" for sign in value)
    )


def _begins_call(text: str, at: int = 0) -> bool:
    name, opening, _ = text[at : at + _MAX_NAME + 1].partition("(")
    return bool(opening) and _is_name(name)


def _read_tagged(opening: str, body: str, literal: bool) -> list[ToolCall]:
    """Return the calls of the text between two tags. If it has none, it is a malformed call."""
    if opening in (_XML, "<function_calls>"):
        calls = _read_xml(body)
    elif opening == _FUNCTION:
        calls = [_read_function(body)]
    else:
        calls = (
            _read_notation(body, literal)
            or [_read_function(piece) for piece in body.split(_FUNCTION)[1:]]
            or _read_name_first(body)
        )
    return calls or [_mark_malformed(body)]


def _read_function(text: str) -> ToolCall:
    """Return the call of `f>{"a": 1}</function>`, or `f><parameter=a>1</parameter></function>`."""
    name, closing, body = (part.strip() for part in text.partition(">"))
    if not closing or not _is_name(name):
        return ToolCall(name="", arguments=text)
    body = body.partition("</function>")[0].strip()
    if not body.startswith("<parameter="):
        return _make_call(name, body)
    return _read_pairs(name, body, "<parameter=", ">", "</parameter>")


def _read_pairs(name: str, body: str, opening: str, middle: str, closing: str) -> ToolCall:
    """Return the call `name`, whose arguments are written `opening` key `middle` value `closing`.
    If one is cut off, the call is malformed."""
    arguments = {}
    for piece in body.split(opening)[1:]:
        key, _, rest = piece.partition(middle)
        value, end, _ = rest.partition(closing)
        if not end:
            return ToolCall(name=name, arguments=body)
        arguments[key.strip()] = _read_value_text(value)
    return _make_call(name, arguments)


def _read_value_text(text: str) -> Any:
    body = text.strip()
    value = parse_arguments(f'{{"value": {body}}}')
    return value["value"] if isinstance(value, dict) and value.keys() == {"value"} else body


def _read_name_first(body: str) -> list[ToolCall]:
    """Return the call of `f{"a": 1}`, `f[ARGS]{"a": 1}`, or a name before `<arg_key>` pairs."""
    has_pairs = "<arg_key>" in body
    at = body.find("<arg_key>" if has_pairs else "{")
    head = body[: max(at, 0)]
    for separator in _SEPARATORS:
        head = head.replace(separator, "\n")
    words = [word.removeprefix("functions.").partition(":")[0] for word in head.split()]
    name = next((word for word in words if word != "function"), "")
    if not _is_name(name):
        return []
    if has_pairs:
        pairs = body[at:].replace("<arg_value>", "")
        return [_read_pairs(name, pairs, "<arg_key>", "</arg_key>", "</arg_value>")]
    arguments, _ = _decode(body, at)
    if not isinstance(arguments, dict):
        return [ToolCall(name=name, arguments=body[at:])]
    return [_make_call(name, arguments)]


def _read_notation(text: str, literal: bool) -> list[ToolCall]:
    """Return the calls of a text that only holds calls; else []."""
    body = text.strip()
    if body.startswith(_FENCE):
        body = _drop_language(body.strip("`"))
    body = body.strip("`" + _BLANK)
    if body.startswith("#"):
        lines = body.splitlines(keepends=True)
        body = "".join(
            dropwhile(lambda line: line.lstrip().startswith(("#", "\n")), lines)
        ).lstrip()
    if body.startswith(_XML):
        return _read_xml(body.removeprefix(_XML).partition("</functions>")[0])
    return _read_json(body) or _read_python(body, literal)


def _drop_language(block: str) -> str:
    first, _, rest = block.partition("\n")
    word, _, behind = first.strip().partition(" ")
    return f"{behind}\n{rest}" if word.replace("_", "").isalnum() else block


def _read_lines(text: str, literal: bool) -> list[ToolCall]:
    """Return calls within prose that begin a line or follow a colon in it."""
    for start in islice(_list_starts(text), _MAX_STARTS):
        if calls := _read_notation(text[start:], literal):
            return calls
    return []


def _list_starts(text: str) -> Iterator[int]:
    at = 0
    for line in text.splitlines(keepends=True):
        behind = at + len(line.partition(": ")[0]) + 2
        if _may_begin(text, at):
            yield at
        # After a colon, `name(` is part of a sentence; `[` or `{` may begin a call.
        elif line[behind - at : behind - at + 1] in ("[", "{") and _may_begin(text, behind):
            yield behind
        at += len(line)


def _may_begin(text: str, at: int) -> bool:
    start = text[at : at + 2 * _MAX_NAME].lstrip("`" + _BLANK)
    inner = start.lstrip("[" + _BLANK)
    return inner.startswith("{") or _begins_call(inner)


def _read_json(text: str) -> list[ToolCall]:
    """Return the calls of consecutive JSON values; [] if they are no calls."""
    values: list[Any] = []
    broken: str | None = None
    at = 0
    while text[at : at + 1] in ("{", "["):
        value, end = _decode(text, at)
        if end is None:
            broken = text[at:]
            break
        values += value if isinstance(value, list) else [value]
        at = end
        while at < len(text) and text[at] in _BLANK + ",;":
            at += 1
    read = [(value, _read_value(value)) for value in values]
    if not any(calls for _, calls in read) and not _resembles_json_call(text):
        return []
    calls = [
        call for value, calls in read for call in calls or [_mark_malformed(exact_json(value))]
    ]
    return calls if broken is None else [*calls, _mark_malformed(broken)]


def _decode(text: str, at: int) -> tuple[Any, int | None]:
    """Return the value that starts at `at`, and its end; (None, None) if it is invalid."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        value, end = _evaluate(text[at:]), len(text)
    try:
        check_storable(value, "a call")
    except Unusable:
        return None, None
    return value, None if value is None else end


def _read_value(value: Any) -> list[ToolCall]:
    """Return the calls of a JSON value: a call, or a message with `tool_calls`."""
    nested = value.get("tool_calls") if isinstance(value, dict) else None
    calls = [to_call(item) for item in (nested if isinstance(nested, list) else [value])]
    return [call for call in calls if call is not None]


def _evaluate(text: str) -> Any:
    """Return a Python literal as a JSON value; None if the text is no literal."""
    body = _parse_expression(text)
    try:
        return None if body is None else json.loads(json.dumps(ast.literal_eval(body)))
    except (ValueError, TypeError, RecursionError):
        return None


def _resembles_json_call(text: str) -> bool:
    """Return whether a text begins like JSON and contains the keys of a call."""
    start = "".join(text[: 2 * _MAX_NAME].replace("'", '"').split())
    if not start.startswith(('{"', '[{"')):
        return False
    name, _, behind = start.partition('"')[2].partition('":')
    if _is_name(name) and behind.startswith(("{", '"{')):
        return True
    return any(f'"{key}"' in text or f"'{key}'" in text for key in (*_NAMES[:2], *_ARGUMENTS[:2]))


def _read_python(text: str, literal: bool) -> list[ToolCall]:
    """Return the calls of a list such as `[f(a=1), g()]`, or of consecutive calls."""
    if not text.startswith("["):
        return _read_bare_calls(text, literal)
    if not _begins_call(text[1:].lstrip("[" + _BLANK)):
        return []
    end, pieces = _split_group(text, 0)
    if end is None:
        return [_mark_malformed(text[1:])]
    if text[end:].partition("\n")[0].strip():
        return []  # a line of prose that begins with a bracket
    return [parse_call(piece, literal=literal) for piece in pieces if piece.strip()]


def _read_bare_calls(text: str, literal: bool) -> list[ToolCall]:
    calls: list[ToolCall] = []
    at = 0
    while _begins_call(text, at):
        end, _ = _split_group(text, text.index("(", at))
        if end is None:
            return [*calls, _mark_malformed(text[at:])]
        calls.append(parse_call(text[at:end], literal=literal))
        at = end
        while at < len(text) and text[at] in " \t,;":
            at += 1
        if text[at : at + 1] == "#":  # a comment
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        if at < len(text) and text[at] not in "\r\n" and not _begins_call(text, at):
            return []  # a sentence that begins like `name(`
        while at < len(text) and text[at] in _BLANK:
            at += 1
    return calls


def _split_group(text: str, start: int) -> tuple[int | None, list[str]]:
    """Return the end of the bracket group at `start` (None if it is not closed), and the texts
    between its commas. Brackets and commas in strings do not count."""
    expected: list[str] = []
    pieces: list[str] = []
    begin = start + 1
    for at, sign in _list_signs(text, start):
        if sign in _CLOSING:
            expected.append(_CLOSING[sign])
        elif sign == ",":
            if len(expected) == 1:
                pieces.append(text[begin:at])
                begin = at + 1
        elif sign != expected.pop():
            break
        elif not expected:
            return at + 1, [*pieces, text[begin:at]]
    return None, []


def _list_signs(text: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield (index, character) of each bracket and comma outside of strings, from `start` on."""
    quote, at = "", start
    while at < len(text):
        sign = text[at]
        if quote and sign == "\\":
            at += 1
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "()[]{},":
            yield at, sign
        at += 1


def _parse_expression(text: str) -> ast.expr | None:
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings():
            # Hide the compiler's warnings about escapes in the model's strings.
            warnings.simplefilter("ignore")
            body = ast.parse(text.strip(), mode="eval").body
            ast.unparse(body)  # raises where the text is nested too deeply to be read
            return body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _from_node(call: ast.Call) -> ToolCall:
    name = ast.unparse(call.func)
    places = {str(place): node for place, node in enumerate(call.args)}
    named = {keyword.arg or "**": keyword.value for keyword in call.keywords}
    arguments = None
    # A literal that JSON lacks raises TypeError, other expressions raise ValueError.
    with suppress(ValueError, TypeError):
        literals = {key: ast.literal_eval(node) for key, node in (places | named).items()}
        arguments = parse_arguments(json.dumps(literals))
    if arguments is None or len(named) < len(call.keywords):
        arguments = ", ".join(ast.unparse(node) for node in [*call.args, *call.keywords])
    return ToolCall(name=name, arguments=readable(arguments))


def _read_expressions(group: str) -> dict[str, Any]:
    """Return a call's arguments in Java or JavaScript, as JSON values, else as text."""
    _, pieces = _split_group(group, 0)
    texts: dict[str, list[str]] = {}
    last = ""
    for place, piece in enumerate(piece for piece in pieces if piece.strip()):
        key, sign, value = (part.strip() for part in piece.partition("="))
        if sign and _is_name(key) and not value.startswith(("=", ">")):
            last, texts[key] = key, [value]
        elif last:  # After a named argument none is positional: `m=new HashMap<String, Object>()`.
            texts[last].append(piece)
        else:
            texts[str(place)] = [piece]
    return {key: _read_expression(",".join(parts)) for key, parts in texts.items()}


def _read_expression(text: str) -> Any:
    body = text.strip()
    if len(body) > 1 and body[0] == body[-1] == "'":
        return body[1:-1]
    return _read_value_text(body)


def _read_xml(text: str) -> list[ToolCall]:
    """Return the calls of `<function name="f"><param name="a" type="integer">1</param></function>`;
    a value may be text or an attribute `value`. Return [] if the text is no XML."""
    if len(text) > MAX_CHARACTERS or "<!" in text:
        return []
    try:
        root = ElementTree.fromstring(f"{_XML}{text}</functions>")
    except (ElementTree.ParseError, ValueError):  # half of a surrogate pair is a ValueError
        return []
    elements = [*root.findall("function"), *root.findall("invoke")]
    calls = [(function.get("name", ""), function) for function in elements]
    return [
        _make_call(
            name,
            {
                item.get("name", ""): _read_parameter(item)
                for item in function.iter()
                if item.tag in ("param", "parameter")
            },
        )
        if _is_name(name)
        else ToolCall(name="", arguments=text)
        for name, function in calls
    ]


def _read_parameter(item: ElementTree.Element) -> Any:
    text = item.get("value", item.text or "")
    kind = item.get("type", "string")
    if kind == "string":
        return text
    if kind == "boolean":
        return text.strip().lower() == "true"
    value = _evaluate(text.strip())
    return text if value is None else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
