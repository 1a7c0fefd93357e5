"""The evidence for an agent's answer: the records and numbers that the agent has seen. Grading uses
it for generated tasks, which have rules (task.py, `Rules`).

A call reads a record if it did not fail and a JSON object in its result has the fields of the
source. Calls by either party, by any tool, and in a task's prefix count.

Guarantee: pure; no transcript makes it raise. Not covered: an agent that reads the right record and
repeats all of it, and answers in number words.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from envs.comparison.numerals import find_values, says
from envs.task import Rules, Source
from events.messages import ExecutedCall, Message, executed_calls

MAX_UNSEEN_VALUES: Final = 8
"""Largest number of unseen values in an episode whose outputs count. An honest agent says a few,
such as the steps of a sum; a list of guesses has many."""

_THOUGHT_START, _THOUGHT_END = "<think>", "</think>"


def holds_number(output: str) -> bool:
    """Return whether an output contains a number, so that an agent could guess it by counting."""
    return next(find_values(output), None) is not None


def find_breaches(
    outputs: Sequence[str],
    rules: Rules,
    policy: str,
    messages: Sequence[Message],
    stateless: Collection[str] = (),
) -> Iterator[str]:
    """Yield one sentence for each reason why the agent's outputs do not count. `stateless` are
    tools that do not touch the state (`ToolCatalog.generic`)."""
    for output in find_outputs_without_source(outputs, rules, messages):
        yield f"said {output!r} before it was looked up"
    if any(map(holds_number, outputs)):
        unseen = count_unseen_values(policy, messages, stateless)
        if unseen > MAX_UNSEEN_VALUES:
            yield f"said {unseen} numbers that nothing had shown; {MAX_UNSEEN_VALUES} are allowed"


def remove_thought(message: Message) -> Message:
    """Return a message without the agent's thoughts in <think> tags that the endpoint left in the
    text. The first opening tag or the last closing tag may be missing."""
    text = message.text
    if message.role != "assistant" or not (_THOUGHT_START in text or _THOUGHT_END in text):
        return message
    return message.model_copy(update={"content": _cut_thoughts(text)})


def find_outputs_without_source(
    outputs: Sequence[str], rules: Rules, messages: Sequence[Message]
) -> tuple[str, ...]:
    """Return the outputs that the agent said only before all of their sources were read."""
    executed = executed_calls(messages)
    unsupported = []
    for output, sources in zip(outputs, rules.sources, strict=False):
        turns = [
            turn
            for turn, message in enumerate(messages)
            if message.role == "assistant" and says(message.text, output)
        ]
        if not turns:
            continue
        before = [item for item in executed if item.turn < turns[-1]]
        if not all(any(holds(item, source) for item in before) for source in sources):
            unsupported.append(output)
    return tuple(unsupported)


def holds(item: ExecutedCall, source: Source) -> bool:
    """Return whether a successful call's result has an object with the fields of `source`. Identity
    fields that it lacks come from the arguments; for a bare text or number all do."""
    if item.result is None or item.failed:
        return False
    arguments = {} if isinstance(item.call.arguments, str) else item.call.arguments
    value = _parse(item.result.text)
    is_bare = not isinstance(value, dict | list)
    objects = [{}] if is_bare else [part for part in _walk(value) if isinstance(part, dict)]
    return any(
        all(name in record for name in source.fields)
        and _has(source.identity, {**arguments, **record})
        for record in objects
    )


def count_unseen_values(
    policy: str, messages: Sequence[Message], stateless: Collection[str] = ()
) -> int:
    """Return how many different numbers the agent said before policy, conversation or results
    showed them. Signs are ignored. Failed calls and `stateless` tools (a calculator) show nothing.
    A number that the agent first put into a call stays unseen, because tools repeat it."""
    calls = {id(item.result): item for item in executed_calls(messages)}
    seen, written, unseen = set(_read_numbers(policy)), set[Decimal](), set[Decimal]()
    for message in messages:
        numbers = _read_numbers(message.text)
        if message.role == "assistant" and message.sampled is not False:
            unseen |= numbers - seen
            written |= _find_arguments(message) - seen
        elif message.role == "tool":
            seen |= _read_result(calls.get(id(message)), stateless) - written
        else:
            seen |= numbers
    return len(unseen)


def has_lookup(messages: Sequence[Message], lookups: Collection[str]) -> bool:
    """Return whether a successful call used one of the tools `lookups` (`Environment.lookups`)."""
    return any(
        item.call.name in lookups and item.result is not None and not item.failed
        for item in executed_calls(messages)
    )


def _cut_thoughts(text: str) -> str:
    before, end, after = text.partition(_THOUGHT_END)
    if end and _THOUGHT_START not in before:
        text = after
    spoken = []
    while text:
        before, _, rest = text.partition(_THOUGHT_START)
        spoken.append(before)
        _, _, text = rest.partition(_THOUGHT_END)
    return "".join(spoken).strip()


def _has(identity: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    return all(name in record and record[name] == value for name, value in identity.items())


@lru_cache(maxsize=512)
def _read_numbers(text: str) -> frozenset[Decimal]:
    # abs() would round, and would fail for a number of a million digits.
    return frozenset(number.copy_abs() for number in find_values(text))


def _read_result(item: ExecutedCall | None, stateless: Collection[str]) -> set[Decimal]:
    if item is None or item.result is None or item.failed or item.call.name in stateless:
        return set()
    return _collect_numbers(_parse(item.result.text))


def _find_arguments(message: Message) -> set[Decimal]:
    return _collect_numbers([call.arguments for call in message.tool_calls])


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _collect_numbers(value: Any) -> set[Decimal]:
    numbers: set[Decimal] = set()
    for item in _walk(value):
        if isinstance(item, str):
            numbers |= _read_numbers(item)
        elif isinstance(item, int):
            numbers.add(Decimal(item).copy_abs())
        elif isinstance(item, float):
            numbers.add(Decimal(repr(item)).copy_abs())
    return numbers


def _walk(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
        yield item
