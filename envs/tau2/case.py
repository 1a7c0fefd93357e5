"""Generated tasks for retail and airline, each about the request of one customer. A kind takes a
case (a customer of a generated database) and returns a task's plan or raises UnfitCustomer."""

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
    """A customer's words, and a perfect agent's calls after the look-up of the customer."""

    request: str
    calls: tuple[Action, ...]
    outputs: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    sources: tuple[Source, ...] = ()
    """The records from which the output is read."""


class CustomerCase:
    """One customer, and the random generator that draws the customer's wishes."""

    def __init__(
        self, database: Database, user: Record, chance: Random, words: Random | None = None
    ) -> None:
        """Make a case whose wishes `chance` draws. With `words`, only the phrases differ."""
        self.database = database
        self.user = user
        self.chance = chance
        self.words = words

    def say(self, phrases: Sequence[str], **values: str) -> str:
        """Return the first phrase (with `words`, a random other one) with its values filled in."""
        return fill_phrase(self.words, phrases, **values)

    def shuffle(self, values: Iterable[T]) -> list[T]:
        """Return the values in random order."""
        copy = list(values)
        self.chance.shuffle(copy)
        return copy


def action(name: str, **arguments: Any) -> Action:
    """Return a gold action of the agent."""
    return Action(name=name, arguments=arguments)


class IdentityOracle(GoldAgent):
    """The oracle of generated tasks. It asks who the user is before its first call."""

    def __init__(self, task: TaskDefinition, writes: frozenset[str], who: str) -> None:
        super().__init__(task, writes)
        self.who = who
        """The question by which it asks who the user is."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return this question until the user has answered it; afterwards reply as any oracle."""
        if not count_calls(messages) and not self._has_identity(messages):
            return Message(role="assistant", content=self.who)
        return super().reply(messages)

    def _has_identity(self, messages: Sequence[Message]) -> bool:
        text = " ".join(message.text for message in messages if message.role == "user")
        return all(str(value) in text for value in self.actions[0].arguments.values())


class CaseEnvironment(Tau2Environment):
    """A domain of tau2-bench. Each of its generated tasks is about one customer."""

    kinds: ClassVar[Mapping[str, Kind[Any, Plan]]]
    """Capability -> its kind, which draws plans from a `case_type`."""
    case_type: ClassVar[type[CustomerCase]]
    who: ClassVar[str]
    """The question by which the oracle asks who the user is."""
    asks_identity: ClassVar[str]
    """Pattern of questions about who the user is."""
    ends: ClassVar[str]
    """Pattern of the agent's texts after which the user hangs up."""
    agrees_first: ClassVar[bool]
    """Whether the script matches questions for a yes before the questions that a plan answers."""

    @abstractmethod
    def identify(self, user: Record, chance: Random, words: Random | None) -> tuple[str, Action]:
        """Return the sentence by which a user says who it is, and the call that looks it up."""

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return the oracle of a task. For a generated task it first asks who the user is."""
        if task.split != GENERATED:
            return super().oracle(task)
        return IdentityOracle(task, self.writes, self.who)

    def write_task(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        """Return the task of a kind and seed, in its first words or in those of a phrasing."""
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
