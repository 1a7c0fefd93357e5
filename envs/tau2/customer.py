"""Parts that the scripted customers of all domains share, such as agreeing and hanging up."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

from envs.database import Database, Record
from envs.task import Answer, Scenario
from envs.users import STOP

Plan = TypeVar("Plan")


class UnfitCustomer(Exception):
    """A kind of task cannot be planned for this customer."""


FAREWELL: Final = Answer(
    asks=r"(help|assist)( you)?( with)? (any|some)thing else|anything else (i|we) can"
    r"|further (help|assistance)|thank you for (contacting|choosing|shopping|flying)"
    r"|have a (good|great|lovely|nice|wonderful|safe|pleasant)",
    says=f"No, that is all. {STOP}",
)
"""Answer to an agent that says goodbye."""

YES: Final = Answer(
    asks=r"yes/no|yes or no|do you confirm|shall i|should i|want me to|like me to"
    r"|may i (do|make|book|cancel|change|add)",
    says="Yes, please.",
)
"""Answer to an agent that asks for a yes."""

CORRECT: Final = Answer(
    asks=r"\bconfirm|is (this|that) (right|correct)|go ahead|proceed", says="Yes, please."
)
"""Answer to an agent that may ask for a yes, used only after answers to other questions."""

_ANYTHING_ELSE: Final = r"(any|some)thing else|other (questions|requests)"

NOTHING_ELSE: Final = (
    # The first time, the agent may ask before a change whether everything was named.
    Answer(asks=_ANYTHING_ELSE, says="No, that is all.", once=True),
    Answer(asks=_ANYTHING_ELSE, says=f"No, that is all. {STOP}"),
)
"""Answers to an agent that asks for further requests."""


def scenario(request: str, identity: str) -> Scenario:
    """Return the scenario of a customer with one request."""
    return Scenario(
        reason_for_call=request,
        known_info=identity,
        task_instructions="Agree to what fits your request, to nothing else. You have no other "
        "request.",
    )


def fill_phrase(words: Random | None, phrases: Sequence[str], **values: str) -> str:
    """Return the first phrase, or with `words` a random other one, with its values filled in. A
    name with a capital, such as {Method}, capitalizes its value."""
    template = phrases[0] if words is None else words.choice(phrases[1:])
    capitals = {name.capitalize(): f"{text[:1].upper()}{text[1:]}" for name, text in values.items()}
    return template.format_map(capitals | values)


def find_customer(
    database: Database, chance: Random, plan: Callable[[Record], Plan]
) -> tuple[Record, Plan]:
    """Return a random customer for whom `plan` raises no UnfitCustomer, and the plan. Raise
    LookupError if it raises it for all."""
    users = list(database["users"].values())
    chance.shuffle(users)
    for user in users:
        with suppress(UnfitCustomer):
            return user, plan(user)
    raise LookupError("no user of this generated database fits the kind of task")
