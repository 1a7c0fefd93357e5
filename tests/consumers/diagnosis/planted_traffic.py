"""Traffic of a known composition, in which one kind of task is weak.

    play(Scenario(ids="loaded", rounds=3), seed, folder)     the patterns after each round

Eight kinds of tasks, two to a write tool. One kind is weak (passes with .4), in some scenarios one
is broken (its tasks never pass), the others pass with .9 to .98 and fail at random. Each rollout
is a `RolloutEnded` event with gold, calls and opening request; the product's own folds label it,
and `PatternsDiagnosed` closes a round after every `size` rollouts.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine

from consumers import database
from consumers.position import position
from consumers.reads.rollouts import PatternLine, pattern_lines
from consumers.runner import Runner
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.learning import PatternsDiagnosed
from events.log import Entry
from events.memory import MemoryLog
from events.messages import Action, Message, ToolCall
from events.rollouts import EventData, RolloutContent, RolloutEnded, Task
from events.serving import AdapterProduced, AdapterStaged, RouteChanged, RouteShare
from events.streams import ROLLOUTS
from migrations.upgrade import upgrade

ALIAS: Final = "agent"
BASE: Final = "base"
ADAPTER: Final = "adapter"

WEAK: Final = 0
BROKEN: Final = 2
PASSES: Final = (0.4, 0.95, 0.9, 0.97, 0.92, 0.98, 0.94, 0.96)
"""The pass rates of the kinds; the broken kind has its own while it works."""
FIXED: Final = 0.95
OLD_SHARE: Final = 0.25
LARGE: Final = 5
LARGE_SHARE: Final = 0.6
LARGE_PASSES: Final = 0.88
PER_KIND: Final = 8
BROKEN_TASKS: Final = 2
"""Size of the pool of a broken kind."""

TOOLS: Final = ("exchange_items", "cancel_order", "change_address", "return_items")

OPENINGS: Final = (
    "swap the shoes from my delivery for another size and colour",
    "replace broken lamp that arrived yesterday with the same model",
    "stop the purchase because it was ordered by mistake on monday",
    "call off the subscription shipment before the warehouse packs everything",
    "move the parcel to our new apartment across town please",
    "correct street number and postcode that courier has on file",
    "send back the jacket and get money onto my credit card",
    "refund headphones since sound quality disappointed the whole family",
)
NAMES: Final = ("anna", "bela", "chen", "dora", "emil", "fatima", "goran", "hana", "ivan", "jun")


@dataclass(frozen=True, slots=True)
class Scenario:
    """The properties of the traffic."""

    ids: str = "generated"
    """`generated`: ENV/KIND/SEED; `loaded`: ids that name no kind; `none`: no task and no gold."""
    repeat: bool = False
    """Whether tasks come from a pool of PER_KIND per kind, else never twice."""
    broken: bool = False
    share: float = 0.15
    """The share of the weak kind in the traffic."""
    size: int = 128
    """Rollouts of a round."""
    rounds: int = 6
    fix: bool = False
    """Half way an adapter takes the route, with which the weak kind passes with .95."""
    large: bool = False
    """A healthy kind has most of the traffic and as many failures as the weak one."""


def weak_pattern(scenario: Scenario) -> str:
    """The pattern of the weak kind's failures."""
    return "tool_loop|*" if scenario.ids == "none" else f"missing_write_action|{TOOLS[0]}"


BROKEN_PATTERN: Final = f"missing_write_action|{TOOLS[BROKEN // 2]}"


def make_round(scenario: Scenario, seed: int, number: int) -> Iterator[RolloutEnded]:
    """The rollouts of a round, in order."""
    chance = random.Random(f"{seed}/{number}")
    fixed = scenario.fix and number >= scenario.rounds // 2
    first = number == scenario.rounds // 2
    for place in range(scenario.size):
        name = f"r{seed}-{number}-{place}"
        old = not fixed or (first and chance.random() < OLD_SHARE)
        kind = _draw_kind(scenario, chance)
        passes = FIXED if kind == WEAK and not old else PASSES[kind]
        if scenario.large and kind == LARGE:
            passes = LARGE_PASSES
        passed = chance.random() < passes and not (scenario.broken and kind == BROKEN)
        yield _build_rollout(scenario, name, kind, passed, old, chance)


def _draw_kind(scenario: Scenario, chance: random.Random) -> int:
    if chance.random() < scenario.share:
        return WEAK
    if scenario.large and chance.random() < LARGE_SHARE:
        return LARGE
    return chance.randrange(1, len(PASSES))


def _build_rollout(
    scenario: Scenario, name: str, kind: int, passed: bool, old: bool, chance: random.Random
) -> RolloutEnded:
    pool = BROKEN_TASKS if scenario.broken and kind == BROKEN else PER_KIND
    number = chance.randrange(pool if scenario.repeat else 10**9)
    tool = TOOLS[kind // 2]
    gold = Action(name=tool, arguments={"order": f"W{number}"})
    ids = {"generated": f"bench/kind{kind}/{number}", "loaded": f"bench/{kind}{number:09d}"}
    loops = not passed and (
        kind == WEAK if scenario.ids == "none" else kind not in (WEAK, BROKEN)
    ) and chance.random() < (1 if kind == WEAK else 0.5)  # fmt: skip
    words = [*chance.sample(OPENINGS[kind].split(), 7), *chance.sample(NAMES, 2)]
    calls: list[tuple[str, dict[str, Any], bool]] = [("look_up", {"query": name}, True)]
    if loops:
        calls += [("look_up", {"query": name, "page": page}, False) for page in range(4)]
    if passed:
        calls.append((tool, {"order": f"W{number}"}, True))
    messages = [Message(role="user", content="hello, please " + " ".join(words))]
    for called, arguments, well in calls:
        call = ToolCall(name=called, arguments=arguments)
        messages.append(Message(role="assistant", tool_calls=(call,)))
        messages.append(Message(role="tool", content="{}", error=not well))
    messages.append(Message(role="assistant", content="Done."))
    messages.append(Message(role="user", content="Thanks."))
    task = None
    if scenario.ids != "none":
        task = Task(id=ids[scenario.ids], environment="bench", gold_actions=(gold,))
    return RolloutEnded(
        rollout=name, alias=ALIAS, base=BASE, policy=BASE if old else ADAPTER, source="bench",
        task=task, success=passed, reward=float(passed), write_tools=TOOLS,
        termination="user_stop" if passed or loops or task is not None else "max_steps",
        content=RolloutContent(messages=tuple(messages)),
    )  # fmt: skip


def route_changes() -> list[EventData]:
    """The events by which the adapter takes the route."""
    return [
        AdapterProduced(
            adapter=ADAPTER, alias=ALIAS, base=BASE, sha256="0" * 64, path="/adapters/adapter",
            origin="push",
        ),
        AdapterStaged(adapter=ADAPTER, replicas=("http://replica",), distance=0.0, from_base=1.0),
        RouteChanged(
            alias=ALIAS, base=BASE, shares=(RouteShare(adapter=ADAPTER, share=1),), why="operator"
        ),
    ]  # fmt: skip


def play(scenario: Scenario, seed: int, folder: Path) -> list[list[PatternLine]]:
    """The patterns after each round, highest priority first."""
    engine = database.open_database(f"sqlite:///{folder}/{seed}.db")
    try:
        upgrade(engine)
        return list(_play(scenario, seed, engine))
    finally:
        engine.dispose()


def _play(scenario: Scenario, seed: int, engine: Engine) -> Iterator[list[PatternLine]]:
    log = MemoryLog()
    for number in range(scenario.rounds):
        if scenario.fix and number == scenario.rounds // 2:
            log.append([_entry(data, f"{place}") for place, data in enumerate(route_changes())])
        log.append([_entry(data, data.rollout) for data in make_round(scenario, seed, number)])
        Runner(log, engine).catch_up()
        with database.read_transaction(engine) as connection:
            reached = {ROLLOUTS.name: position(connection)[ROLLOUTS.name]}
        log.append([_entry(PatternsDiagnosed(trigger="diagnose", position=reached), f"p{number}")])
        Runner(log, engine).catch_up()
        with database.read_transaction(engine) as connection:
            yield pattern_lines(connection)


def _entry(data: EventData, name: str) -> Entry:
    envelope = Envelope(derive_id("bench", data.TYPE, name), data.TYPE, data.VERSION, data.key())
    return encode(envelope, data, 1).entry
