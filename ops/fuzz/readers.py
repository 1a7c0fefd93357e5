"""The functions that parse text from a model, a customer, a tool, a client or a file."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from consumers.diagnosis import response_patterns
from consumers.diagnosis.anchors import sign_request
from consumers.diagnosis.detectors import diagnose
from daemon.controller.model_answers import strip_fence
from daemon.engine.chat import parse_answer
from daemon.engine.streaming import StopStrings, ToolCallStream
from daemon.methods.synthesis.manners import MANNERS, give_manner
from envs.airline.environment import Airline
from envs.asides import AsideSplitter, split_aside
from envs.environment import Environment
from envs.episode import Termination
from envs.evidence import spelling, utterances, words
from envs.evidence.user_faults import find_user_fault
from envs.grading import grade
from envs.lessons.reflections import find_cause, find_fault, find_unnamed
from envs.lessons.values import SeenValues
from envs.patterns.search import matches
from envs.reflection.mended import is_repaired
from envs.reflection.official import score_officially
from envs.reflection.parse import parse
from envs.reflection.repair import read_written
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.simulator import find_breach, parse_number
from envs.tau2.arithmetic import calculate
from envs.telecom.environment import Telecom
from envs.toolsandbox.device.search import measure_likeness
from envs.toolsandbox.environment import ToolSandbox
from envs.toolsandbox.similarity import measure_rouge_l
from events.json_text.guard import parse_arguments
from events.messages import Message, Role, ToolCall
from events.rollouts import RolloutContent, RolloutEnded, Task
from producers.gateway.capture.digests import Conversation
from producers.gateway.http.sse import Splitter
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.privacy.rules import find_builtin
from producers.importers.call_text import parse_call, parse_calls
from producers.importers.documents import decode_at, items
from producers.storable import readable

Reader = Callable[[str], object]

_ENVIRONMENTS: Final = (Airline, Retail, Shop, Telecom, ToolSandbox)
_PATTERNS: Final = (r"(e-?mail|zip)[^.!]*\?", r"\s*(.*?)\s*</call>", r"(?<!not )(\w+)\s.*\bor \1")
"""Patterns of tasks: two for RE2, and one for `re`, which searches a part of the text."""


def list_readers() -> dict[str, Reader]:
    """Return name -> function that reads a text."""
    return {
        **_list_answer_readers(),
        **_list_wire_readers(),
        **_list_attribution_readers(),
        **_list_judges(),
        **{f"user of {kind.name}": partial(_play_user, kind()) for kind in _ENVIRONMENTS},
        **{f"pattern {pattern}": partial(matches, pattern) for pattern in _PATTERNS},
    }


def _list_answer_readers() -> dict[str, Reader]:
    return {
        "answer": parse_answer,
        "answer in a stream": lambda text: _stream(ToolCallStream(), text),
        "stop strings": lambda text: list(map(StopStrings(["###", "<stop>"]).push, text)),
        "reflection": split_aside,
        "reflection in a stream": lambda text: list(map(AsideSplitter().feed, text)),
        "completion": parse,
        "repair": read_written,
        "official score, Qwen": lambda text: score_officially(text, text, "qwen"),
        "official score, Llama": lambda text: score_officially(text, text, "llama"),
        "mended score, Qwen": lambda text: is_repaired(text, text, "qwen"),
        "mended score, Llama": lambda text: is_repaired(text, text, "llama"),
        "fenced answer": strip_fence,
        "line of a user": lambda text: find_breach(_say(text, "user"), opening=True),
        "number of a line": lambda text: parse_number(text, 8),
        "cause of an error": find_cause,
        "fault of a reflection": find_fault,
        "values of a reflection": lambda text: find_unnamed(text, ()),
        "seen values": lambda text: SeenValues([_say(text), _say(text, "tool")]).has(text),
        "calculator": _calculate,
    }


def _list_wire_readers() -> dict[str, Reader]:
    rules = [find_builtin(name) for name in ("email", "card", "iban", "secret", "phone")]
    redaction = Redaction(rules, b"salt")
    return {
        "redaction": redaction.redact_text,
        "redaction of an answer": lambda text: redaction.redact_answer([_say(text)], [text]),
        "digests": lambda text: Conversation.of([{"role": "user", "content": text}]),
        "events": lambda text: Splitter().feed(text.encode()),
        "arguments": parse_arguments,
        "readable": readable,
        "BFCL calls": parse_calls,
        "BFCL call": parse_call,
        "JSON": lambda text: decode_at(text, 0, ""),
        "JSON nested too deeply": lambda text: decode_at("[" * 100_000 + text, 0, ""),
        "JSON array": lambda text: list(items(f"[{text}", 0, "", lambda value: False)),
        "request": lambda text: sign_request([_say(text, "user")]),
    }


def _list_attribution_readers() -> dict[str, Reader]:
    return {
        "words": words.words,
        "value": spelling.is_value,
        "spelled date": lambda text: spelling.has_value(words.squeeze(text), "2024-05-16"),
        "spelled id": lambda text: spelling.has_id(text, "A1-1--1111"),
        "id": lambda text: spelling.has_id(text, text[:90]),
        "names": lambda text: spelling.find_name(words.words(text), ["find_user", "get_order"]),
        "number words": spelling.has_number_words,
        **{
            f"utterance {judge.__name__}": judge
            for judge in (
                *(utterances.agrees, utterances.refuses, utterances.is_farewell),
                *(utterances.wants_answer, utterances.is_readable, utterances.turns_down),
                utterances.negates,
            )
        },
        **{f"manner {name}": partial(_give_manner, name) for name in MANNERS},
    }


def _list_judges() -> dict[str, Reader]:
    judges: dict[str, Reader] = {
        f"response {judge.__name__}": judge
        for judge in (
            *(response_patterns.refuses, response_patterns.asks),
            *(response_patterns.hands_over, response_patterns.overflows),
        )
    }
    judges["diagnosis"] = _diagnose
    judges["ROUGE-L"] = partial(measure_rouge_l, "Your order 12 is cancelled, and you are paid.")
    judges["likeness"] = lambda text: measure_likeness(text, "Fredrik Thordendal")
    for kind in _ENVIRONMENTS:
        judges[f"grade of {kind.name}"] = partial(_grade, kind())
        judges[f"fault of a user of {kind.name}"] = partial(_find_fault, kind())
    return judges


def _say(text: str, role: Role = "assistant") -> Message:
    return Message(role=role, content=text)


def _stream(stream: ToolCallStream, text: str) -> object:
    return [*map(stream.push, text), stream.flush()]


def _calculate(text: str) -> None:
    with suppress(ValueError, TypeError, ArithmeticError, SyntaxError):  # its answers
        calculate(text)


def _give_manner(name: str, text: str) -> object:
    shop = Shop()
    task = shop.generate(next(iter(shop.capabilities)), 1)
    assert task.script is not None
    return give_manner(
        task.model_copy(update={"script": task.script.model_copy(update={"opening": text})}), name
    )


def _write_conversation(environment: Environment, text: str) -> Iterator[Message]:
    """Yield a conversation in which both sides and a tool say `text`."""
    tool = next(iter(environment.toolset.tools()))
    yield _say(text, "user")
    yield Message(
        role="assistant", content=text, tool_calls=(ToolCall(name=tool, arguments={"id": text}),)
    )
    yield _say(text, "tool")
    yield _say(text)
    yield _say("yes", "user")


def _play_user(environment: Environment, text: str) -> object:
    task = environment.generate(next(iter(environment.capabilities)), 1)
    user = environment.user(task)
    messages = [user.reply([])]
    messages.append(_say(text))
    return user.reply(messages)


def _grade(environment: Environment, text: str) -> object:
    task = environment.generate(next(iter(environment.capabilities)), 1)
    messages = list(_write_conversation(environment, text))
    return grade(environment, task, messages, Termination.USER_STOP)


def _find_fault(environment: Environment, text: str) -> object:
    task = environment.generate(next(iter(environment.capabilities)), 1)
    return find_user_fault(environment, task, list(_write_conversation(environment, text)))


def _diagnose(text: str) -> object:
    messages = tuple(_write_conversation(Shop(), text))
    rollout = RolloutEnded(
        rollout="r",
        alias="a",
        base="b",
        policy="b",
        source="fuzz",
        purpose="import",
        task=Task(id="shop/cancel/1", environment="shop"),
        success=False,
        termination="user_stop",
        content=RolloutContent(messages=messages),
    )
    return diagnose(rollout, None)
