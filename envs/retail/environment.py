"""Retail customer service: tasks of our own over generated databases, and tau2-bench's real ones.

    Retail().tasks()                    our tasks, every kind in turn
    Retail(benchmarks).tasks("test")    the real ones of a split

Guarantee: a generated task is a function of capability and seed, its customer fits its kind, and
tasks with equal seeds share a database. Not promised: that a scripted customer understands every
way in which an agent may ask; a model plays one better.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

from envs.agents import CLOSING, Agent
from envs.database import Database, Record, Tables
from envs.retail import phrases
from envs.retail.case import Case, action
from envs.retail.database import build_database, canonical
from envs.retail.kinds import KINDS, Plan
from envs.retail.policy import POLICY, violations
from envs.retail.tools import RetailTools
from envs.task import GENERATED, Answer, Criteria, Rules, Script, TaskDefinition
from envs.tau2.customer import (
    CORRECT,
    FAREWELL,
    NOTHING_ELSE,
    YES,
    fill_phrase,
    find_customer,
    scenario,
)
from envs.tau2.environment import Tau2Environment
from envs.tau2.oracle import IdentityOracle
from events.messages import Action, Message

_IDENTITY: Final = (
    r"\byour ((full|first|last) )?(e-?mail|names?|zip)|(e-?mail|zip)[^.!]*\?"
    r"|verify|identity|authenticate|who you are"
)
WHO: Final = "Please tell me your e-mail address, or your name and zip code."
_ENDS: Final = rf"being transferred to a human agent|{CLOSING}"


class Retail(Tau2Environment):
    """Orders that are cancelled, changed, returned, exchanged and asked about."""

    name: ClassVar[str] = "retail"
    toolset = RetailTools
    internal: ClassVar[frozenset[str]] = frozenset({"item_ids", "new_item_ids"})
    capabilities: ClassVar[Mapping[str, str]] = {name: kind.demands for name, kind in KINDS.items()}

    @staticmethod
    def canonical(tables: Mapping[str, Any]) -> Tables:
        """The tables with every field and type of the original's models."""
        return canonical(tables)

    def synthetic_database(self, seed: int) -> Database:
        """Thirty users and their orders."""
        return build_database(seed)

    def synthetic_policy(self) -> str:
        """The rules in our words."""
        return POLICY

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return the oracle of a task; that of a generated task asks who the user is."""
        if task.split != GENERATED:
            return super().oracle(task)
        return IdentityOracle(task, self.writes, WHO)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Broken rules about who is helped, who agreed and how calls are made."""
        return violations(messages, self.writes)

    def write_task(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        """The task of this kind with this seed, in its first words or in those of a phrasing."""
        words = None if phrasing is None else Random(f"retail phrasing {phrasing}")
        chance = Random(f"retail task {capability} {seed}")
        database = build_database(seed)
        plan_of = KINDS[capability].plan
        user, plan = find_customer(
            database, chance, lambda user: plan_of(Case(database, user, chance, words))
        )
        by_email = chance.random() < 0.5
        identity = _identity(user, by_email, words)
        return TaskDefinition(
            id=self.task_id(capability, seed) + ("" if phrasing is None else f"/{phrasing}"),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=scenario(plan.request, identity),
            script=_script(identity, plan, told_at_once=chance.random() < 0.5),
            criteria=Criteria(
                gold_actions=(_authentication(user, by_email), *plan.calls),
                outputs=plan.outputs,
                reward_basis=("DB", "COMMUNICATE", "POLICY"),
                rules=Rules(sources=(plan.sources,) if plan.sources else ()),
            ),
        )


def _authentication(user: Record, by_email: bool) -> Action:
    if by_email:
        return action("find_user_id_by_email", email=user["email"])
    return action("find_user_id_by_name_zip", **user["name"], zip=user["address"]["zip"])


def _identity(user: Record, by_email: bool, words: Random | None) -> str:
    """What the customer says of who they are: what the perfect agent looks them up by."""
    if by_email:
        return fill_phrase(words, phrases.BY_EMAIL, email=user["email"])
    name, zip_code = user["name"], user["address"]["zip"]
    return fill_phrase(
        words, phrases.BY_NAME, first=name["first_name"], last=name["last_name"], zip=zip_code
    )


def _script(identity: str, plan: Plan, told_at_once: bool) -> Script:
    return Script(
        opening=f"{identity} {plan.request}" if told_at_once else plan.request,
        answers=(
            FAREWELL,
            YES,
            *plan.answers,
            Answer(asks=_IDENTITY, says=identity),
            CORRECT,
            *NOTHING_ELSE,
        ),
        otherwise=plan.request,
        ends=_ENDS,
    )
