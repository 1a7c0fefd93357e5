"""The environment shop: a small retail domain that a model of a million parameters can learn.

It has ten tools, databases drawn from a seed, and 22 kinds of task that can be mixed in any share.
Episodes have 80 to 200 tokens, if each entity and each piece of JSON is one token
(tests/envs/shop/tokens.py). Success needs the right database, the right closing sentence and
answers, and no breach of the rules (policy.py). Not covered: prices, quantities, a customer who
refuses to confirm or gives a wrong zip code.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from envs.agents import Agent
from envs.database import Database
from envs.environment import Environment, Limits
from envs.shop import policy
from envs.shop.case import Case
from envs.shop.kinds import KINDS, Plan
from envs.shop.oracle import ShopOracle
from envs.shop.phrases import ASSENTS, IDENTITIES, OPENINGS
from envs.shop.tables import make_tables
from envs.shop.tools import ShopTools
from envs.task import Answer, Basis, Criteria, Rules, Scenario, Script, TaskDefinition
from events.messages import Action, Message

BASIS: Final[tuple[Basis, ...]] = ("DB", "COMMUNICATE", "POLICY")
PATIENCE: Final = 2


class Shop(Environment):
    """Customers cancel, return or exchange items, or ask for something that is not possible."""

    name = "shop"
    toolset = ShopTools
    capabilities = {name: kind.demands for name, kind in KINDS.items()}
    limits: ClassVar[Limits] = Limits(max_steps=60, max_errors=5)

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Return a task. Its field `seed` is the database's seed, drawn from kind and seed."""
        return self._build_task(capability, seed)

    def task(self, task_id: str) -> TaskDefinition:
        """Return the task with this id; shop/CAPABILITY/SEED/PHRASING is a rephrased one."""
        phrased = self.read_phrasing(task_id)
        return super().task(task_id) if phrased is None else self._build_task(*phrased)

    def rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return the task in other phrases. Return None if they change the order of two wishes."""
        original = "/".join(task.id.split("/")[:3])
        rephrased = self.task(f"{original}/{seed}")
        return rephrased if rephrased.criteria == task.criteria else None

    def _build_task(
        self, capability: str, seed: int, phrasing: int | None = None
    ) -> TaskDefinition:
        self.check_capability(capability)
        chance = Random(f"shop {capability} {seed}")
        database = chance.getrandbits(48)
        case = _case(capability, database, chance, phrasing)
        plan = KINDS[capability].plan(case)
        return TaskDefinition(
            id=self.task_id(capability, seed) + ("" if phrasing is None else f"/{phrasing}"),
            environment=self.name,
            capability=capability,
            seed=database,
            scenario=_scenario(case, plan),
            script=_script(case, plan),
            criteria=_criteria(case, plan),
        )

    def pristine(self, task: TaskDefinition) -> Database:
        return Database(make_tables(task.seed))

    def state_key(self, task: TaskDefinition) -> str:
        return str(task.seed)

    def policy(self, task: TaskDefinition) -> str:
        """Return the policy, the same for every task."""
        return policy.POLICY

    def oracle(self, task: TaskDefinition) -> Agent:
        return ShopOracle(task, self.writes)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        return tuple(policy.violations(task, messages, self.catalog))


def _case(capability: str, database: int, chance: Random, phrasing: int | None) -> Case:
    tables = make_tables(database)
    single = capability == "one_order"
    users = [user for user in tables["users"].values() if (len(user["orders"]) == 1) == single]
    words = None if phrasing is None else Random(f"shop phrasing {phrasing}")
    return Case(tables, chance.choice(users), chance, words)


def _scenario(case: Case, plan: Plan) -> Scenario:
    reaction = f" When you are answered, say: {plan.reaction}" if plan.reaction else ""
    return Scenario(
        reason_for_call=plan.request,
        known_info=f"You are {case.user['name']} and your zip code is {case.user['zip']}.",
        task_instructions=f"Confirm what you have asked for when you are asked.{reaction}",
    )


def _script(case: Case, plan: Plan) -> Script:
    identity = case.say(IDENTITIES, name=case.user["name"], zip=case.user["zip"])
    agrees = Answer(asks=policy.ASKS, says=case.say(ASSENTS))
    reacts: tuple[Answer, ...] = ()
    if plan.answer is not None:
        reacts = (Answer(asks=rf"\b{re.escape(plan.answer)}\b", says=plan.reaction or ""),)
    return Script(
        opening=case.say(OPENINGS, identity=identity, request=plan.request),
        answers=(agrees, *reacts),
        otherwise=f"{identity} {plan.request}",
        ends=policy.ENDS,
        patience=PATIENCE,
    )


def _criteria(case: Case, plan: Plan) -> Criteria:
    who = {"name": case.user["name"], "zip": case.user["zip"]}
    answers = () if plan.answer is None else (policy.answer(plan.answer),)
    closing = policy.REFUSED if plan.refused else policy.DONE
    return Criteria(
        gold_actions=(Action(name="find_user", arguments=who), *plan.calls),
        outputs=(*answers, policy.output(closing)),
        reward_basis=BASIS,
        rules=Rules(sources=() if plan.source is None else ((plan.source,),)),
    )
