"""The demo's agent: it follows a script and makes known mistakes at known rates.

Because each mistake is chosen before the conversation is played, the demo can count how many of
them the diagnosis found. The diagnosis is told nothing: it reads the same records as any other.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from events.messages import Action
from ops.demo.shop import REASONS, TOOLS, WRITES, Answer, Shop
from ops.demo.tasks import Request, Task

NAME: Final = "scripted-agent"
SLIP: Final = 0.1
"""Share of conversations in which the email is misheard first: an error that is no failure."""


class Mistake(StrEnum):
    """What the agent may do wrong, in words for the demo's table."""

    FORGETS = "forgets the second request"
    WRONG_ITEM = "picks another item or variant"
    WRONG_ARGUMENT = "writes another reason or address"
    SILENT = "does not say the refund"
    WRONG_TOOL = "returns instead of exchanging"
    WRONG_ORDER = "works on another order"
    REFUSES = "refuses what it could do"
    LOOPS = "calls the same tool again and again"
    ASKS = "ends on a question"
    EXTRA = "cancels what nobody asked for"


CATEGORY: Final[Mapping[Mistake, str]] = {
    Mistake.FORGETS: "missing_write_action",
    Mistake.WRONG_ITEM: "wrong_item_selection",
    Mistake.WRONG_ARGUMENT: "incorrect_arguments",
    Mistake.SILENT: "information_error",
    Mistake.WRONG_TOOL: "wrong_tool",
    Mistake.WRONG_ORDER: "wrong_entity",
    Mistake.REFUSES: "over_cautious",
    Mistake.LOOPS: "tool_loop",
    Mistake.ASKS: "premature_termination",
    Mistake.EXTRA: "policy_violation",
}
"""The category that names each mistake."""

_RATES: Final[Mapping[Mistake, float]] = {
    Mistake.FORGETS: 0.28,
    Mistake.WRONG_ITEM: 0.14,
    Mistake.WRONG_ARGUMENT: 0.10,
    Mistake.SILENT: 0.10,
    Mistake.WRONG_TOOL: 0.08,
    Mistake.WRONG_ORDER: 0.04,
    Mistake.REFUSES: 0.04,
    Mistake.LOOPS: 0.03,
    Mistake.ASKS: 0.03,
    Mistake.EXTRA: 0.03,
}
"""How often each is made where it can be."""

_POLICY: Final = (
    "You are the service agent of a shop. Find the customer by email first. Pending orders can be "
    "cancelled or sent elsewhere, delivered ones returned or exchanged. Ask before you change "
    "anything, do everything the customer asks for and nothing else."
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout as a log would hold it, and what was done wrong in it."""

    record: dict[str, Any]
    mistake: Mistake | None


def attempt(task: Task, shop: Shop, trial: int, seed: int) -> Attempt:
    """Play one conversation on a copy of the shop and judge it by its outcome."""
    random_ = random.Random(f"attempt {seed} {task.id} {trial}")
    place, mistake = _mistake(task, shop, random_)
    conversation = _Conversation(task, shop.copy(), random_)
    conversation.play(place, mistake)
    parts = {
        "DB": float(conversation.shop.orders == _gold_orders(task, shop)),
        "COMMUNICATE": float(
            all(
                not request.answer or conversation.said(request.answer) for request in task.requests
            )
        ),
    }
    success = all(parts.values())
    record = {
        "messages": conversation.messages,
        "tools": _TOOLS,
        "write_tools": WRITES,
        "task": {
            "id": task.id,
            "environment": "demo",
            "capability": task.capability,
            "instruction": task.instruction,
            "gold_actions": [
                {"name": request.gold.name, "arguments": request.gold.arguments}
                for request in task.requests
            ],
            "outputs": [request.answer for request in task.requests if request.answer],
            "reward_basis": ["DB", "COMMUNICATE"],
        },
        "base": NAME,
        "trial": trial,
        "seed": seed,
        "success": success,
        "reward": float(success),
        "reward_parts": parts,
        "grader": "ops.demo",
        "simulator": "scripted",
        "termination": "user_stop",
    }
    return Attempt(record, mistake)


_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {parameter: {} for parameter in parameters},
                "required": list(parameters),
            },
        },
    }
    for name, parameters in TOOLS.items()
]


def _gold_orders(task: Task, shop: Shop) -> dict[str, Any]:
    """The orders after a perfect agent."""
    gold = shop.copy()
    for request in task.requests:
        answer = gold.call(request.gold)
        if answer.error:
            raise ValueError(f"the gold calls of task {task.id} do not work: {answer.text}")
    return gold.orders


def _mistake(task: Task, shop: Shop, random_: random.Random) -> tuple[int, Mistake | None]:
    """At which request the agent errs, and how."""
    place = random_.randrange(len(task.requests))
    for mistake, rate in _RATES.items():
        if _possible(mistake, task, task.requests[place], shop) and random_.random() < rate:
            return place, mistake
    return place, None


def _possible(mistake: Mistake, task: Task, request: Request, shop: Shop) -> bool:
    match mistake:
        case Mistake.FORGETS:
            return len(task.requests) > 1
        case Mistake.WRONG_ITEM:
            return request.kind in ("return", "exchange")
        case Mistake.WRONG_ARGUMENT:
            return request.kind in ("cancel", "address")
        case Mistake.SILENT:
            return request.kind == "return"
        case Mistake.WRONG_TOOL:
            return request.kind == "exchange"
        case Mistake.WRONG_ORDER:
            return request.kind != "exchange" and bool(_other_orders(task, request, shop))
        case Mistake.EXTRA:
            return any(shop.orders[order].status == "pending" for order in _unasked(task))
        case _:
            return True


def _unasked(task: Task) -> list[str]:
    asked = {request.order.id for request in task.requests}
    return [order for order in task.customer.orders if order not in asked]


def _other_orders(task: Task, request: Request, shop: Shop) -> list[str]:
    return [order for order in _unasked(task) if shop.orders[order].status == request.order.status]


class _Conversation:
    """The messages of one attempt, written as it is played."""

    def __init__(self, task: Task, shop: Shop, random_: random.Random) -> None:
        self.task = task
        self.shop = shop
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": _POLICY}]
        self._random = random_
        self._calls = 0

    def said(self, text: str) -> bool:
        """Whether the agent wrote this to the customer."""
        return any(
            message["role"] == "assistant" and text in (message["content"] or "")
            for message in self.messages
        )

    def play(self, place: int, mistake: Mistake | None) -> None:
        self._find_customer()
        requests = list(self.task.requests)
        if mistake is Mistake.FORGETS:
            requests.pop()
        for number, request in enumerate(requests):
            erring = mistake if number == place else None
            if self._serve(request, erring) in _ENDING:
                return
        if mistake is Mistake.EXTRA:
            self._cancel_unasked()
        self._say("That is everything. Is there anything else I can do for you?")
        self._hear("No, thank you.")

    def _find_customer(self) -> None:
        email = self.task.customer.email
        self._hear(f"Hello, my email is {email}. {self.task.instruction}")
        if self._random.random() < SLIP:
            cut = self._random.randrange(1, email.index("@"))
            self._call("find_customer", email=email[:cut] + email[cut + 1 :])
            self._say("I find nobody with this email. Could you spell it, please?")
            self._hear(f"It is {email}")
        self._call("find_customer", email=email)

    def _serve(self, request: Request, mistake: Mistake | None) -> Mistake | None:
        self._call("get_order", order_id=request.order.id)
        if request.kind == "exchange" and request.item is not None:
            self._call("list_variants", item_id=request.item.id)
        if mistake in _ENDING:
            _ENDING[mistake](self, request)
            return mistake
        action = self._erred(request, mistake)
        what = f"{action.name.replace('_', ' ')} for {action.arguments['order_id']}"
        self._say(f"I am going to {what}. Shall I proceed?")
        self._hear(self._random.choice(("Yes, please.", "Yes.", "Go ahead.")))
        answer = self._call(action.name, **action.arguments)
        if answer.error:
            self._say("That did not work, I am sorry.")
        elif "refund" in answer.text and mistake is not Mistake.SILENT:
            self._say(f"Done. You get back {json.loads(answer.text)['refund']} euros.")
        else:
            self._say("Done.")
        return mistake

    def _erred(self, request: Request, mistake: Mistake | None) -> Action:
        """The call that the agent makes for a request: gold, or gold with a mistake."""
        arguments = dict(request.gold.arguments)
        name = request.gold.name
        order = self.shop.orders[request.order.id]
        match mistake:
            case Mistake.WRONG_ITEM if request.kind == "return":
                arguments["item_ids"] = [i for i in order.items if i not in arguments["item_ids"]]
            case Mistake.WRONG_ITEM if request.item is not None:
                arguments["new_item_id"] = next(
                    other.id
                    for other in self.shop.variants(request.item)
                    if other.id != arguments["new_item_id"]
                )
            case Mistake.WRONG_ARGUMENT if request.kind == "cancel":
                arguments["reason"] = next(r for r in REASONS if r != arguments["reason"])
            case Mistake.WRONG_ARGUMENT:
                number, street = arguments["address"].split(" ", 1)
                arguments["address"] = f"{int(number) + 1} {street}"
            case Mistake.WRONG_TOOL:
                name = "return_items"
                arguments = {"order_id": order.id, "item_ids": [arguments["item_id"]]}
            case Mistake.WRONG_ORDER:
                other = self._random.choice(_other_orders(self.task, request, self.shop))
                arguments["order_id"] = other
                if request.kind == "return":
                    arguments["item_ids"] = [self.shop.orders[other].items[0]]
        return Action(name=name, arguments=arguments)

    def _cancel_unasked(self) -> None:
        pending = [o for o in _unasked(self.task) if self.shop.orders[o].status == "pending"]
        order = self._random.choice(pending)
        self._call("cancel_order", order_id=order, reason=REASONS[0])
        self._say(f"I have cancelled order {order} as well.")

    def _refuse(self, request: Request) -> None:
        if self._random.random() < 0.5:
            self._call("transfer_to_human", summary=request.words)
            self._say("I have transferred you to a colleague.")
        else:
            self._say(f"I am sorry, but I cannot change order {request.order.id}.")
            self._hear("That is a pity. Goodbye.")

    def _loop(self, request: Request) -> None:
        for _ in range(self._random.randrange(3, 6)):
            self._call("get_order", order_id=request.order.id)
        self._say("Something went wrong on our side, please write to us again tomorrow.")
        self._hear("All right. Goodbye.")

    def _ask(self, request: Request) -> None:
        self._say(
            self._random.choice(
                (
                    f"Could you tell me which item of order {request.order.id} you mean?",
                    "Which address is it going to?",
                    "Would you like me to look at the whole order first?",
                )
            )
        )

    def _say(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def _hear(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def _call(self, name: str, **arguments: Any) -> Answer:
        self._calls += 1
        identity = f"call_{self._calls}"
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": identity, "type": "function", "function": function}
        answer = self.shop.call(Action(name=name, arguments=arguments))
        self.messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identity, "name": name, "content": answer.text},
        ]
        return answer


_ENDING: Final[Mapping[Mistake | None, Callable[[_Conversation, Request], None]]] = {
    Mistake.REFUSES: _Conversation._refuse,
    Mistake.LOOPS: _Conversation._loop,
    Mistake.ASKS: _Conversation._ask,
}
"""Mistakes after which the conversation is over."""


def attempts(shop: Shop, tasks: list[Task], trials: int, seed: int) -> Iterator[Attempt]:
    """Every task, `trials` times."""
    for trial in range(trials):
        for task in tasks:
            yield attempt(task, shop, trial, seed)
