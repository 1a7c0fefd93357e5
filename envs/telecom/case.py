"""A customer with a phone: the material that faults and kinds of task are made of."""

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
    """One customer, the line whose phone they hold, and the chance that draws what is wrong."""

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
        """The arguments that name the line and whose it is."""
        return {"customer_id": self.customer["customer_id"], "line_id": self.line["line_id"]}

    @property
    def setup(self) -> tuple[StateCall, ...]:
        """Calls that give the phone to the customer, where they are."""
        number = self.line["phone_number"]
        calls = [prepare("set_user_info", name=self.customer["full_name"], phone_number=number)]
        if self.is_abroad:
            calls.append(prepare("set_user_location", abroad=True))
        return tuple(calls)


def draw_case(database: Database, chance: Random) -> Case:
    """Return a customer of a state and one of their lines."""
    customer = chance.choice(list(database["customers"].values()))
    line = database["lines"][chance.choice(customer["line_ids"])]
    return Case(database, customer, line, chance)


def prepare(function: str, side: Requestor = "user", /, **arguments: Any) -> StateCall:
    """Return a call that makes something go wrong."""
    return StateCall(name=function, arguments=arguments, side=side)


def agent(tool: str, /, **arguments: Any) -> Action:
    """Return a call of the perfect agent."""
    return Action(name=tool, arguments=arguments)


def user(tool: str, /, **arguments: Any) -> Action:
    """Return a call that the user makes when the perfect agent asks for it."""
    return Action(name=tool, arguments=arguments, requestor="user")
