"""Retail customer service: tasks of our own over generated databases, and tau2-bench's real ones.

Guarantee: a generated task depends only on capability and seed, and its customer fits its kind.
Tasks with equal seeds share a database. Not promised: that a scripted customer understands every
question.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

from envs.agents import CLOSING
from envs.database import Database, Record, Tables
from envs.retail import phrases
from envs.retail.case import Case
from envs.retail.database import build_database, canonical
from envs.retail.kinds import KINDS
from envs.retail.policy import POLICY, violations
from envs.retail.tools import RetailTools
from envs.task import TaskDefinition
from envs.tau2.case import CaseEnvironment, action
from envs.tau2.customer import fill_phrase
from events.messages import Action, Message

WHO: Final = "Please tell me your e-mail address, or your name and zip code."


class Retail(CaseEnvironment):
    """Customers cancel, change, return, exchange and ask about orders."""

    name: ClassVar[str] = "retail"
    toolset = RetailTools
    internal: ClassVar[frozenset[str]] = frozenset({"item_ids", "new_item_ids"})
    capabilities: ClassVar[Mapping[str, str]] = {name: kind.demands for name, kind in KINDS.items()}
    kinds = KINDS
    case_type = Case
    who = WHO
    asks_identity = (
        r"\byour ((full|first|last) )?(e-?mail|names?|zip)|(e-?mail|zip)[^.!]*\?"
        r"|verify|identity|authenticate|who you are"
    )
    ends = rf"being transferred to a human agent|{CLOSING}"
    agrees_first = True

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
        """Return a sentence with e-mail, or name and zip code, and the call to look it up."""
        if chance.random() < 0.5:
            identity = fill_phrase(words, phrases.BY_EMAIL, email=user["email"])
            return identity, action("find_user_id_by_email", email=user["email"])
        name, zip_code = user["name"], user["address"]["zip"]
        identity = fill_phrase(
            words, phrases.BY_NAME, first=name["first_name"], last=name["last_name"], zip=zip_code
        )
        return identity, action("find_user_id_by_name_zip", **name, zip=zip_code)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return the rules that the agent broke: identification, consent, and the form of calls."""
        return violations(messages, self.writes)
