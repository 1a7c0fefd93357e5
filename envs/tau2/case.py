"""Tasks of our own that are one customer's request, for retail and airline. A kind is a function of
a case, a customer of a generated database; it returns a task's plan, or raises UnfitCustomer."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, TypeVar

from envs.agents import Agent, GoldAgent, count_calls
from envs.database import Database, Record
from envs.task import GENERATED, Answer, Criteria, Kind, Rules, Script, Source, TaskDefinition
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
from events.messages import Action, Message

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """A customer's words, and a perfect agent's calls once it has found the customer."""

    request: str
    calls: tuple[Action, ...]
    outputs: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    sources: tuple[Source, ...] = ()
    """The records that the output is read from."""


class CustomerCase:
    """One customer, and the chance that draws what they want."""

    def __init__(
        self, database: Database, user: Record, chance: Random, words: Random | None = None
    ) -> None:
        """Make a case. With its own `words`, the same chance draws the same case in other words."""
        self.database = database
        self.user = user
        self.chance = chance
        self.words = words

    def say(self, phrases: Sequence[str], **values: str) -> str:
        """Return one of the phrases, filled in."""
        return fill_phrase(self.words, phrases, **values)

    def shuffle(self, values: Iterable[T]) -> list[T]:
        """Return the values in an order of chance."""
        copy = list(values)
        self.chance.shuffle(copy)
        return copy


def action(name: str, **arguments: Any) -> Action:
    """Return a call of a perfect agent."""
    return Action(name=name, arguments=arguments)


class IdentityOracle(GoldAgent):
    """The perfect agent of generated tasks: it asks who the user is before its first lookup."""

    def __init__(self, task: TaskDefinition, writes: frozenset[str], who: str) -> None:
        super().__init__(task, writes)
        self.who = who
        """The question who they are."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the question, until they said it; then as any oracle."""
        if not count_calls(messages) and not self._has_identity(messages):
            return Message(role="assistant", content=self.who)
        return super().reply(messages)

    def _has_identity(self, messages: Sequence[Message]) -> bool:
        text = " ".join(message.text for message in messages if message.role == "user")
        return all(str(value) in text for value in self.actions[0].arguments.values())


class CaseEnvironment(Tau2Environment):
    """A domain whose generated tasks are cases of one customer."""

    kinds: ClassVar[Mapping[str, Kind[Any, Plan]]]
    """Capability -> its kind, whose plan is drawn for a `case_type`."""
    case_type: ClassVar[type[CustomerCase]]
    who: ClassVar[str]
    """The question by which the oracle asks who the customer is."""
    asks_identity: ClassVar[str]
    """Pattern of such a question."""
    ends: ClassVar[str]
    """Pattern of what ends a conversation."""
    agrees_first: ClassVar[bool]
    """Whether a question for leave is looked for before those that a plan has answers to."""

    @abstractmethod
    def identify(self, user: Record, chance: Random, words: Random | None) -> tuple[str, Action]:
        """Return what the customer says of who they are, and the call that looks it up."""

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return the oracle of a task; that of a generated task asks who the user is."""
        if task.split != GENERATED:
            return super().oracle(task)
        return IdentityOracle(task, self.writes, self.who)

    def write_task(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        """Return the task of this kind with this seed, in its first words or in a phrasing."""
        words = None if phrasing is None else Random(f"{self.name} phrasing {phrasing}")
        chance = Random(f"{self.name} task {capability} {seed}")
        database, kind = self.synthetic_database(seed), self.kinds[capability]
        user, plan = find_customer(
            database,
            chance,
            lambda user: kind.plan(self.case_type(database, user, chance, words)),
        )
        identity, lookup = self.identify(user, chance, words)
        return TaskDefinition(
            id=self.task_id(capability, seed) + ("" if phrasing is None else f"/{phrasing}"),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=scenario(plan.request, identity),
            script=self._build_script(identity, plan, told_at_once=chance.random() < 0.5),
            criteria=Criteria(
                gold_actions=(lookup, *plan.calls),
                outputs=plan.outputs,
                reward_basis=("DB", "COMMUNICATE", "POLICY"),
                rules=Rules(sources=(plan.sources,) if plan.sources else ()),
            ),
        )

    def _build_script(self, identity: str, plan: Plan, told_at_once: bool) -> Script:
        own = (YES, *plan.answers) if self.agrees_first else (*plan.answers, YES)
        asked = Answer(asks=self.asks_identity, says=identity)
        return Script(
            opening=f"{identity} {plan.request}" if told_at_once else plan.request,
            answers=(FAREWELL, *own, asked, CORRECT, *NOTHING_ELSE),
            otherwise=plan.request,
            ends=self.ends,
        )
