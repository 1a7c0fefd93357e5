"""Airline customer service: tasks of our own over generated databases, and tau2-bench's real ones.

Guarantee: a generated task depends only on capability and seed. Its customer fits its kind, and its
gold actions keep the policy. Tasks with equal seeds share a database. Not promised: that a scripted
customer understands every question.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

from envs.agents import CLOSING
from envs.airline import phrases
from envs.airline.case import Case
from envs.airline.database import build_database, canonical
from envs.airline.kinds import KINDS
from envs.airline.policy import HANDED_OVER, POLICY, violations
from envs.airline.tools import AirlineTools
from envs.database import Database, Record, Tables
from envs.task import TaskDefinition
from envs.tau2.case import CaseEnvironment, action
from envs.tau2.customer import fill_phrase
from events.messages import Action, Message

WHO: Final = "Please tell me your user id."


class Airline(CaseEnvironment):
    """Customers book, change, cancel and ask about reservations, and ask for compensation."""

    name: ClassVar[str] = "airline"
    toolset = AirlineTools
    capabilities: ClassVar[Mapping[str, str]] = {name: kind.demands for name, kind in KINDS.items()}
    kinds = KINDS
    case_type = Case
    who = WHO
    asks_identity = r"\buser[ -]?id\b|\byour id\b|\bid number|verify|identity|who you are"
    ends = rf"{HANDED_OVER}|{CLOSING}"
    agrees_first = False

    @staticmethod
    def canonical(tables: Mapping[str, Any]) -> Tables:
        """Return the tables with every field and type of tau2-bench's models."""
        return canonical(tables)

    def synthetic_database(self, seed: int) -> Database:
        """Return the generated database for this seed."""
        return build_database(seed)

    def synthetic_policy(self) -> str:
        """Return the agent's rules, in our words."""
        return POLICY

    def identify(self, user: Record, chance: Random, words: Random | None) -> tuple[str, Action]:
        """Return the customer's sentence with the user id, and the call that looks it up."""
        identity = fill_phrase(words, phrases.IDENTITY, user=user["user_id"])
        return identity, action("get_user_details", user_id=user["user_id"])

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return the rules that the agent broke: identification, consent, and the form of calls."""
        return violations(messages)
