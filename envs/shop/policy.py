"""The rules of shop: as text for the agent, and as a check of transcripts.

The check covers the rules whose breach the final state does not show. Before every write, the
customer must be authenticated and agree to exactly this change. The agent closes with the right
sentence, gives only the right answer, refuses only after a look-up, and transfers only on request.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from envs.catalog import ToolCatalog
from envs.comparison.numerals import says
from envs.patterns.search import matches
from envs.task import TaskDefinition
from events.messages import ExecutedCall, Message, ToolCall, executed_calls

POLICY: Final = """\
You serve the customers of a shop.
- Call find_user first, then get_order for every order in question.
- Before each change ask one line "Confirm: ...?" that names the order and every new value. After \
a yes, make that one change at once.
- Only a pending order can be cancelled or get another payment or street. Only of a delivered \
order can items be returned or exchanged; an exchange is for a colour that get_product lists.
- A refund goes to the payment of the order, or to the gift card of the customer who asks for it.
- Change only orders of the customer whom you found.
- Answer each question with "Answer: VALUE." before any change.
- Call transfer_to_human only if the customer wants a person.
- At the end say "Done." If what the customer wants is not possible, look it up, change nothing \
and say "Sorry, not possible."
"""

DONE: Final = "Done."
REFUSED: Final = "Sorry, not possible."
CONFIRM: Final = "Confirm:"

ENDS: Final = r"\bdone\.|\bnot possible\."
"""Pattern of both closing sentences, after which the customer hangs up."""
ASKS: Final = r"\bconfirm\b[\s\S]*\?"
"""Pattern of a question for a yes."""

_AGREES: Final = re.compile(r"\W*(yes|yeah|sure|ok|okay|correct|please do|go ahead)\b", re.I)
_ANSWER: Final = re.compile(r"answer:[^.\n]*\.?", re.IGNORECASE)
"""Pattern of an answer, even inside a word, as for outputs (grading.py)."""
_WORD: Final = re.compile(r"\w+")


def output(sentence: str) -> str:
    """Return a sentence as an output: without commas, as graded texts have none (grading.py)."""
    return sentence.replace(",", "")


def answer(value: str) -> str:
    """Return the sentence with which the agent answers a question."""
    return f"Answer: {value}."


def violations(
    task: TaskDefinition, messages: Sequence[Message], catalog: ToolCatalog
) -> Iterator[str]:
    """Yield one sentence for each breach of a rule."""
    executed = executed_calls(messages)
    yield from _writes_without_authentication(executed, catalog)
    yield from _writes_without_consent(messages, catalog)
    yield from _transfers(task, executed, catalog)
    yield from _sayings(task, messages)
    yield from _refusals(task, messages, executed)


def _writes_without_authentication(
    executed: Sequence[ExecutedCall], catalog: ToolCatalog
) -> Iterator[str]:
    for item in executed:
        if item.call.name in catalog.authenticating and item.result and not item.failed:
            return
        if item.sampled and item.call.name in catalog.writes:
            yield f"{item.call.name} before the customer was found"


def _writes_without_consent(messages: Sequence[Message], catalog: ToolCatalog) -> Iterator[str]:
    for place, message in enumerate(messages):
        if message.role != "assistant" or message.sampled is False or not message.tool_calls:
            continue
        question = _find_confirmation(messages[:place])
        for number, call in enumerate(message.tool_calls):
            if call.name not in catalog.writes:
                continue
            if question is None or number:
                yield f"{call.name} without a yes just before it"
            elif unnamed := _find_foreign_value(call, question):
                yield f"{call.name} with {unnamed}, which the confirmation did not name"


def _find_confirmation(before: Sequence[Message]) -> str | None:
    """Return the agent's question for a yes if a yes to it is the last message."""
    if len(before) < 2 or before[-1].role != "user" or before[-2].role != "assistant":
        return None
    question = before[-2].text
    return question if matches(ASKS, question) and _AGREES.match(before[-1].text) else None


def _find_foreign_value(call: ToolCall, question: str) -> str | None:
    """Return the first value of a call whose words are not all in the question, or None."""
    if isinstance(call.arguments, str):
        return call.arguments
    named = _words(question)
    values = map(str, call.arguments.values())
    return next((value for value in values if not _words(value) <= named), None)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _transfers(
    task: TaskDefinition, executed: Sequence[ExecutedCall], catalog: ToolCatalog
) -> Iterator[str]:
    wanted = [a.arguments for a in task.criteria.gold_actions or () if a.name in catalog.transfer]
    places = [n for n, item in enumerate(executed) if item.call.name in catalog.transfer]
    transfers = [executed[place].call.arguments for place in places]
    own = [executed[place].call.arguments for place in places if executed[place].sampled]
    if own and not wanted:
        yield "transferred a customer who did not want it"
    elif wanted and wanted[0] not in transfers:
        yield "did not transfer a customer who wanted it"
    elif any(arguments not in wanted for arguments in own):
        yield "transferred a customer with another order than theirs"
    elif wanted and not _has_lookup(task, executed[: places[0]]):
        yield "transferred without a look at the customer and the order"


def _sayings(task: TaskDefinition, messages: Sequence[Message]) -> Iterator[str]:
    """Yield closings and answers that are not the task's, because an agent could say all of them.
    Yield also right ones in another form, which cannot be told from wrong ones."""
    right = {sentence.lower() for sentence in task.criteria.outputs}
    spoken = [output(m.text).lower() for m in messages if m.role == "assistant" and m.content]
    for sentence in sorted(right - {DONE.lower()}):
        # A sentence that was not said at all is a matter of COMMUNICATE.
        is_said = any(says(text, sentence) for text in spoken)
        is_exact = any(sentence in text for text in spoken)
        if task.criteria.rules is not None and is_said and not is_exact:
            yield f"did not say {sentence!r} word for word"
    wrong = [sentence for sentence in (DONE, output(REFUSED)) if sentence.lower() not in right]
    for text in _agent_texts(messages):
        yield from (f"said {sentence!r}" for sentence in wrong if sentence.lower() in text)
        yield from (
            f"said {sentence!r}" for sentence in _ANSWER.findall(text) if sentence not in right
        )


def _refusals(
    task: TaskDefinition, messages: Sequence[Message], executed: Sequence[ExecutedCall]
) -> Iterator[str]:
    refused = any(output(REFUSED).lower() in text for text in _agent_texts(messages))
    if refused and not _has_lookup(task, executed):
        yield "refused without a look at the customer and the order"


def _has_lookup(task: TaskDefinition, executed: Sequence[ExecutedCall]) -> bool:
    # A list and not a set, because an agent may write a list, which cannot be hashed, for an id.
    seen = [
        (item.call.name, item.call.arguments.get("order_id"))
        for item in executed
        if item.result and not item.failed and isinstance(item.call.arguments, dict)
    ]
    gold = task.criteria.gold_actions or ()
    orders = {(a.name, a.arguments["order_id"]) for a in gold if a.name == "get_order"}
    return ("find_user", None) in seen and any(order in seen for order in orders)


def _agent_texts(messages: Sequence[Message]) -> list[str]:
    return [
        output(message.text).lower()
        for message in messages
        if message.role == "assistant" and message.content and message.sampled is not False
    ]
