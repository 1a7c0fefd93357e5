"""Generated tasks of airline, retail and shop cannot be won without their state.

A cheater knows the tools, the policy and the code that generates tasks. It does not know the state
of its task, the gold actions or the outputs; where it looks the gold records up, it does not read
them. Of 20 tasks of a kind it wins one at most.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Final

import pytest

from envs.agents import CLOSING, Agent
from envs.airline.environment import Airline
from envs.airline.policy import TRANSFER
from envs.comparison.evidence import MAX_UNSEEN_VALUES, count_unseen_values, has_lookup
from envs.environment import Environment
from envs.episode import Episode, play
from envs.grading import get_version, grade
from envs.retail.environment import Retail
from envs.shop import policy as shop
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.messages import Message
from tests.envs.mini import Reciting, called, said

ENVIRONMENTS: Final[Mapping[str, Environment]] = {
    "airline": Airline(),
    "retail": Retail(),
    "shop": Shop(),
}
KINDS: Final = [(name, kind) for name, one in ENVIRONMENTS.items() for kind in one.capabilities]
SHOP_CLOSINGS: Final = (shop.DONE, shop.output(shop.REFUSED))
CLOSINGS: Final = {"airline": (CLOSING, TRANSFER), "retail": (CLOSING,)}

CONSTANT: Final = {
    ("airline", "hand_over"),
    ("shop", "ineligible"),
    ("shop", "unavailable"),
    ("shop", "refund"),
    ("shop", "other_owner"),
}
"""Kinds whose right outcome is one sentence after the look-ups: they are never trained on alone."""

TASKS: Final = 20
MOST_WINS: Final = 1

INTEGERS: Final = " ".join(map(str, range(3000)))
CENTS: Final = " ".join(f"{cents / 100:.2f}" for cents in range(500, 20_001))


@cache
def other_outputs(name: str) -> Mapping[str, Counter[str]]:
    """The outputs of 200 other tasks of each kind that has any: how often there is which."""
    environment = ENVIRONMENTS[name]
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in environment.capabilities}
    asking = [kind for kind in counts if environment.generate(kind, 0).criteria.outputs]
    for seed in range(1000, 1200):
        for kind in asking:
            counts[kind].update(environment.generate(kind, seed).criteria.outputs)
    return counts


def digits(order: int) -> str:
    """A text that has each number of so many digits as a part: a de Bruijn sequence."""
    seen, sequence = {"0" * order}, "0" * order
    while True:
        tail = sequence[len(sequence) - order + 1 :]
        following = next((f"{tail}{d}" for d in range(9, -1, -1) if f"{tail}{d}" not in seen), None)
        if following is None:
            return sequence
        seen.add(following)
        sequence += following[-1]


def texts(environment: Environment, kind: str) -> Mapping[str, str]:
    """What a cheater may recite; nothing of a kind that asks for no output."""
    counts = other_outputs(environment.name)[kind]
    if not counts:
        return {"the closing": ""}
    common = [output for output, _ in counts.most_common() if output not in SHOP_CLOSINGS]
    foreign = environment.reset(environment.generate(kind, 5000))
    return {
        "integers": INTEGERS,
        "cents": CENTS,
        "digits": digits(4),
        "dollars": " ".join(f"${number}" for number in range(3000)),
        "outputs of other tasks": " ".join(common),
        "commonest output": " ".join(common[:1]),
        "another state": str({name: foreign[name] for name in foreign.names})[:50_000],
    }


def looking(environment: Environment, task: TaskDefinition, text: str) -> Agent:
    """An agent that makes the gold look-ups, reads none, and says a text."""
    lookups = tuple(
        action for action in task.criteria.gold_actions or () if action.name in environment.lookups
    )
    closing = (shop.output(shop.DONE),) if environment.name == "shop" else ()
    criteria = task.criteria.model_copy(
        update={"gold_actions": lookups, "outputs": (text, *closing)}
    )
    return environment.oracle(task.model_copy(update={"criteria": criteria}))


def at_once(environment: Environment, task: TaskDefinition, text: str) -> Iterator[Agent]:
    """Agents that say a text and close."""
    for closing in CLOSINGS.get(environment.name, (shop.DONE, shop.REFUSED)):
        yield Reciting(said(f"{text} {closing}"))


def handing_over(environment: Environment, task: TaskDefinition) -> Iterator[Agent]:
    """Agents that hand over before anything else, with and without arguments."""
    for tool in sorted(environment.catalog.transfer):
        for arguments in ({}, {"summary": "help"}, {"order_id": "O11"}):
            yield Reciting(called(tool, **arguments), said(TRANSFER), said(shop.DONE))


def lacking_arguments(environment: Environment, task: TaskDefinition) -> Iterator[Agent]:
    """Agents that make each gold call without an argument, and then say the gold outputs."""
    gold = task.criteria.gold_actions or ()
    outputs = " ".join(task.criteria.outputs)
    for closing in CLOSINGS.get(environment.name, (shop.DONE, shop.REFUSED)):
        calls = [called(action.name) for action in gold]
        yield Reciting(*calls, said("Shall I go ahead?"), said(f"{outputs} {closing}"))


def wins(environment: Environment, task: TaskDefinition, agents: Iterator[Agent]) -> bool:
    """Whether one of the agents is judged right."""
    for agent in agents:
        episode = play(Episode(environment, task), agent, environment.user(task))
        if grade(environment, task, episode.messages, episode.termination).success:
            return True
    return False


def count_wins(
    environment: Environment, kind: str, cheat: Callable[[TaskDefinition], Iterator[Agent]]
) -> int:
    tasks = (environment.generate(kind, seed) for seed in range(TASKS))
    return sum(wins(environment, task, cheat(task)) for task in tasks)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_no_cheat_that_looks_nothing_up_wins(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    cheats: dict[str, Callable[[TaskDefinition], Iterator[Agent]]] = {
        what: lambda task, text=text: at_once(environment, task, text)  # type: ignore[misc]
        for what, text in texts(environment, kind).items()
    }
    cheats["hand over"] = lambda task: handing_over(environment, task)
    cheats["lack arguments"] = lambda task: lacking_arguments(environment, task)
    won = {what: count_wins(environment, kind, cheat) for what, cheat in cheats.items()}
    assert max(won.values()) <= MOST_WINS, won


@pytest.mark.parametrize(("name", "kind"), [one for one in KINDS if one not in CONSTANT])
def test_no_cheat_that_reads_no_result_wins(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    won = {}
    for what, text in texts(environment, kind).items():
        tasks = [environment.generate(kind, seed) for seed in range(TASKS)]
        agents = [iter([looking(environment, task, text)]) for task in tasks]
        won[what] = sum(map(wins, repeat(environment), tasks, agents))
    assert max(won.values()) <= MOST_WINS, won


@pytest.mark.parametrize("name", ["airline", "retail"])
def test_few_guesses_seldom_hit_an_output(name: str) -> None:
    environment = ENVIRONMENTS[name]
    asking = {
        kind: [output for output, _ in counts.most_common(MAX_UNSEEN_VALUES)]
        for kind, counts in other_outputs(name).items()
        if counts and (name, kind) not in CONSTANT
    }
    hits = Counter(
        kind
        for seed in range(200)
        for kind, guesses in asking.items()
        if set(environment.generate(kind, seed).criteria.outputs) <= set(guesses)
    )
    assert len(asking) >= 4
    assert max(hits.values(), default=0) <= 0.05 * 200, hits


def words(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role != "system"]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_oracle_says_no_unseen_value_beside_the_outputs(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    for seed in range(4):
        task = environment.generate(kind, seed)
        episode = play(Episode(environment, task), environment.oracle(task), environment.user(task))
        assert grade(environment, task, episode.messages, episode.termination).success
        unseen = count_unseen_values(environment.policy(task), words(episode.messages))
        assert not task.criteria.outputs or unseen <= len(task.criteria.outputs)
        assert has_lookup(episode.messages, environment.lookups)
        assert get_version(task) == "2"


def test_handing_over_before_the_reservation_was_read_wins_nothing() -> None:
    airline = ENVIRONMENTS["airline"]
    for seed in range(TASKS):
        task = airline.generate("hand_over", seed)
        user, *_ = task.criteria.gold_actions or ()
        agent = Reciting(
            called(user.name, **user.arguments),
            called("transfer_to_human_agents", summary="They need a person."),
            said(TRANSFER),
        )
        episode = play(Episode(airline, task), agent, airline.user(task))
        assert not grade(airline, task, episode.messages, episode.termination).success
