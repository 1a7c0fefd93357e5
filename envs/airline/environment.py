"""Airline customer service: tasks of our own over generated databases, and tau2-bench's real ones.

    Airline().tasks()                   our tasks, every kind in turn
    Airline(benchmarks).tasks("test")   the real ones of a split

Guarantee: a generated task is a function of capability and seed, its customer fits its kind, its
gold actions keep the policy, and tasks with equal seeds share a database. Not promised: that a
scripted customer understands every way in which an agent may ask; a model plays one better.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

from envs.agents import CLOSING, Agent
from envs.airline import phrases
from envs.airline.case import Case, Plan, action
from envs.airline.database import build_database, canonical
from envs.airline.kinds import KINDS
from envs.airline.policy import HANDED_OVER, POLICY, violations
from envs.airline.tools import AirlineTools
from envs.database import Database, Tables
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
from events.messages import Message

_IDENTITY: Final = r"\buser[ -]?id\b|\byour id\b|\bid number|verify|identity|who you are"
WHO: Final = "Please tell me your user id."
_ENDS: Final = rf"{HANDED_OVER}|{CLOSING}"


class Airline(Tau2Environment):
    """Reservations that are booked, changed, cancelled, compensated and asked about."""

    name: ClassVar[str] = "airline"
    toolset = AirlineTools
    capabilities: ClassVar[Mapping[str, str]] = {name: kind.demands for name, kind in KINDS.items()}

    @staticmethod
    def canonical(tables: Mapping[str, Any]) -> Tables:
        """The tables with every field and type of the original's models."""
        return canonical(tables)

    def synthetic_database(self, seed: int) -> Database:
        """Sixty flights, 24 users and their reservations."""
        return build_database(seed)

    def synthetic_policy(self) -> str:
        """The rules in our words."""
        return POLICY

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return the oracle of a task; that of a generated task asks for the user's id."""
        if task.split != GENERATED:
            return super().oracle(task)
        return IdentityOracle(task, self.writes, WHO)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Broken rules about who is served, who agreed and how calls are made."""
        return violations(messages)

    def write_task(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        """The task of this kind with this seed, in its first words or in those of a phrasing."""
        words = None if phrasing is None else Random(f"airline phrasing {phrasing}")
        chance = Random(f"airline task {capability} {seed}")
        database = build_database(seed)
        plan_of = KINDS[capability].plan
        user, plan = find_customer(
            database, chance, lambda user: plan_of(Case(database, user, chance, words))
        )
        get_user = action("get_user_details", user_id=user["user_id"])
        identity = fill_phrase(words, phrases.IDENTITY, user=user["user_id"])
        return TaskDefinition(
            id=self.task_id(capability, seed) + ("" if phrasing is None else f"/{phrasing}"),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=scenario(plan.request, identity),
            script=_script(identity, plan, told_at_once=chance.random() < 0.5),
            criteria=Criteria(
                gold_actions=(get_user, *plan.calls),
                outputs=plan.outputs,
                reward_basis=("DB", "COMMUNICATE", "POLICY"),
                rules=Rules(sources=(plan.sources,) if plan.sources else ()),
            ),
        )


def _script(identity: str, plan: Plan, told_at_once: bool) -> Script:
    return Script(
        opening=f"{identity} {plan.request}" if told_at_once else plan.request,
        answers=(
            FAREWELL,
            *plan.answers,
            YES,
            Answer(asks=_IDENTITY, says=identity),
            CORRECT,
            *NOTHING_ELSE,
        ),
        otherwise=plan.request,
        ends=_ENDS,
    )
