"""One customer with a phone, from which faults and kinds of task build tasks."""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from envs.database import Database, Record
from envs.task import StateCall
from events.messages import Action, Requestor

HOME: Final = "I am at home in the United States."
ABROAD: Final = "I am abroad at the moment, outside the United States."


@dataclass
class Case:
    """One customer, the line of the phone they hold, and the random generator that draws faults."""

    database: Database
    customer: Record
    line: Record
    chance: Random
    is_abroad: bool = False

    @property
    def plan(self) -> Record:
        """The plan of the line."""
        return self.database["plans"][self.line["plan_id"]]

    @property
    def owner(self) -> dict[str, str]:
        """The arguments that name the customer and the line."""
        return {"customer_id": self.customer["customer_id"], "line_id": self.line["line_id"]}

    @property
    def setup(self) -> tuple[StateCall, ...]:
        """Calls that give the phone to the customer and place it at home or abroad."""
        number = self.line["phone_number"]
        calls = [prepare("set_user_info", name=self.customer["full_name"], phone_number=number)]
        if self.is_abroad:
            calls.append(prepare("set_user_location", abroad=True))
        return tuple(calls)


def draw_case(database: Database, chance: Random) -> Case:
    """Return a random customer of a state with one of their lines."""
    customer = chance.choice(list(database["customers"].values()))
    line = database["lines"][chance.choice(customer["line_ids"])]
    return Case(database, customer, line, chance)


def prepare(function: str, side: Requestor = "user", /, **arguments: Any) -> StateCall:
    """Return a setup call, which prepares the first state of a task."""
    return StateCall(name=function, arguments=arguments, side=side)


def agent(tool: str, /, **arguments: Any) -> Action:
    """Return a gold action of the agent."""
    return Action(name=tool, arguments=arguments)


def user(tool: str, /, **arguments: Any) -> Action:
    """Return a gold action of the user, which the agent has to ask for."""
    return Action(name=tool, arguments=arguments, requestor="user")
