"""The environment `mini`: as small as one can be that still has everything a test may need.

Orders are cancelled or noted on. `strange` takes arguments of every type that a schema can have,
`note` keeps what it is given, and `broken` raises what no tool should.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from envs.database import Database
from envs.environment import Environment
from envs.episode import Episode, play
from envs.grading import Grade, grade
from envs.task import Answer, Criteria, Scenario, Script, TaskDefinition
from envs.tools import ToolError, Toolset, generic, read, write
from events.messages import Action, Message, ToolCall

ORDERS: Final = ("w1", "w2", "w3")
"""Ids of the orders; all are pending."""

DONE: Final = "Your request is complete."


class Place(BaseModel):
    """Where something goes."""

    street: str
    number: int | None = None


class MiniTools(Toolset):
    """Reads, writes, and what only a strange agent calls."""

    @read
    def get_order(self, order_id: Annotated[str, Field(description="Such as w1.")]) -> Any:
        """Look up one order."""
        if order_id not in self.database["orders"]:
            raise ToolError(f"no order {order_id!r}")
        return self.database["orders"][order_id]

    @write
    def cancel_order(self, order_id: str, reason: Literal["late", "dear"] = "late") -> str:
        """Cancel a pending order."""
        if self.get_order(order_id)["status"] != "pending":
            raise ToolError("only a pending order can be cancelled")
        self.database.edit("orders", order_id).update(status="cancelled", reason=reason)
        return "cancelled"

    @write
    def note(self, order_id: str, notes: list[str]) -> str:
        """Keep notes with an order, as they are."""
        self.get_order(order_id)
        self.database.edit("orders", order_id)["notes"] = notes
        return "noted"

    @generic
    def strange(
        self,
        place: Place,
        copy: dict[str, Any],
        ratio: float,
        many: list[list[int]] | None = None,
        sure: bool = False,
    ) -> Any:
        """Take anything and give some of it back."""
        return {"street": place.street, "copy": copy, "ratio": ratio, "many": many, "sure": sure}

    @read
    def broken(self) -> str:
        """Raise what no tool should."""
        raise ZeroDivisionError("by zero")


class Mini(Environment):
    """Orders that are to be cancelled, or told about."""

    name = "mini"
    toolset = MiniTools
    capabilities = {"cancel": "cancels one order", "tell": "says what an order costs"}
    tasks_per_capability = 3

    def policy(self, task: TaskDefinition) -> str:
        """One sentence."""
        return "Ask before you cancel."

    def pristine(self, task: TaskDefinition) -> Database:
        """Three orders and a shelf that nothing touches."""
        orders = {
            order: {"status": "pending", "price": f"1,00{place}", "notes": []}
            for place, order in enumerate(ORDERS)
        }
        return Database({"orders": orders, "shelf": {"s": [1, 2.5, None]}})

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Cancel an order, or name its price."""
        order = ORDERS[seed % len(ORDERS)]
        gold = [Action(name="get_order", arguments={"order_id": order})]
        outputs: tuple[str, ...] = ()
        if capability == "cancel":
            gold.append(Action(name="cancel_order", arguments={"order_id": order}))
        else:
            outputs = (f"100{seed % len(ORDERS)}",)
        opening = f"Please {capability} me about order {order}."
        yes = Answer(asks="confirm", says="Yes.")
        return TaskDefinition(
            id=self.task_id(capability, seed),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=Scenario(reason_for_call=opening),
            script=Script(opening=opening, answers=(yes,), ends="request is complete"),
            criteria=Criteria(gold_actions=tuple(gold), outputs=outputs),
        )


def task(capability: str = "cancel", seed: int = 0, **criteria: Any) -> TaskDefinition:
    """A task of mini, with these criteria changed."""
    made = Mini().generate(capability, seed)
    return made.model_copy(update={"criteria": made.criteria.model_copy(update=criteria)})


def said(text: str) -> Message:
    """What the agent says."""
    return Message(role="assistant", content=text)


def heard(text: str) -> Message:
    """What the user says."""
    return Message(role="user", content=text)


def called(name: str, /, **arguments: Any) -> Message:
    """A call of the agent."""
    return calls((name, arguments))


def calls(*made: tuple[str, dict[str, Any] | str]) -> Message:
    """Several calls of the agent in one message."""
    return Message(
        role="assistant",
        tool_calls=tuple(
            ToolCall(name=name, arguments=arguments, id=f"call_{number}")
            for number, (name, arguments) in enumerate(made)
        ),
    )


class Reciting:
    """An agent or a user that says what it was told to, then its last message again and again."""

    def __init__(self, *messages: Message) -> None:
        self.coming = list(messages)

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next message."""
        return self.coming.pop(0) if len(self.coming) > 1 else self.coming[0]


def played(task: TaskDefinition, *messages: Message) -> Episode:
    """An episode in which the agent recites these messages, then that all is complete."""
    environment = Mini()
    agent = Reciting(*messages, said(DONE))
    return play(Episode(environment, task), agent, environment.user(task))


def graded(task: TaskDefinition, *messages: Message) -> Grade:
    """What such an episode is worth."""
    episode = played(task, *messages)
    return grade(Mini(), task, episode.messages, episode.termination)
