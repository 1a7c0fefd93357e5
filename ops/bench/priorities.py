"""Whether the priorities find a planted weakness, on traffic of a known composition.

    python -m ops.bench.priorities [--seeds 20] [--rows NAME ...] [--json]

Method. Eight kinds of tasks, two to a write tool. One kind is weak (passes with .4), in some rows
one is broken (its tasks never pass), the others pass with .9 to .98 and fail at random: noise. Each
rollout is a `RolloutEnded` event with gold, calls and opening request; the product's own folds
label it, and `PatternsDiagnosed` closes a round after every SIZE rollouts. What a row varies:

    repeat     tasks come from a pool of PER_KIND per kind, or never twice
    ids        `generated`: ENV/KIND/SEED; `loaded`: ids that name no kind; `none`: no task and no
               gold, only what the user says
    share      of the traffic that is of the weak kind
    fix        half way an adapter takes the route, with which the weak kind passes with .95; a
               quarter of the first round after it still is of the old policy
    drift      the weak kind's share falls from twice `share` to nothing
    alike      requests of the two kinds of a tool have most words in common

    large      a healthy kind has most of the traffic, passes with .88, and fails in each of two
               ways as often as the weak kind

Per row, over seeds and rounds: `first`, how often the weak kind's pattern has the highest
priority, `resolved`, how often it is RESOLVED (before a fix), and `broken_below`, how often the
broken kind's has a lower one than the weak kind's; from the second round on, and where tasks are
broken from the one on in which each of them is expected to have twelve attempts, of which a verdict
takes eight. `rounds_to_fall`, after how many rounds of the
new policy the weak pattern has less than half of the priority that it had or is RESOLVED: the mean,
and the slowest seed.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
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
from ops.bench.intervals import wilson

ALIAS: Final = "agent"
BASE: Final = "base"
ADAPTER: Final = "adapter"

WEAK: Final = 0
BROKEN: Final = 2
PASSES: Final = (0.4, 0.95, 0.9, 0.97, 0.92, 0.98, 0.94, 0.96)
"""Of the kinds; that of the broken one where it is not broken."""
FIXED: Final = 0.95
OLD_SHARE: Final = 0.25
LARGE: Final = 5
LARGE_SHARE: Final = 0.6
LARGE_PASSES: Final = 0.88
PER_KIND: Final = 8
BROKEN_TASKS: Final = 2
"""Size of the pool of a broken kind."""
BROKEN_ATTEMPTS: Final = 8

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
    """A row of the table."""

    ids: str = "generated"
    repeat: bool = False
    broken: bool = False
    share: float = 0.15
    size: int = 128
    rounds: int = 6
    fix: bool = False
    drift: bool = False
    large: bool = False
    alike: bool = False


ROWS: Final[Mapping[str, Scenario]] = {
    **{
        f"{ids}, {'repeating' if repeat else 'never repeating'}, rounds of {size}": Scenario(
            ids=ids, repeat=repeat, broken=repeat, size=size, rounds=rounds
        )
        for size, rounds in ((32, 12), (128, 6), (512, 4))
        for ids in ("generated", "loaded")
        for repeat in (False, True)
    },
    "no task, rounds of 128": Scenario(ids="none"),
    "generated, rare weakness": Scenario(share=0.04, size=256),
    "loaded, rare weakness": Scenario(ids="loaded", share=0.04, size=256),
    "loaded, requests alike, rounds of 128": Scenario(ids="loaded", alike=True),
    "loaded, requests alike, rare weakness": Scenario(
        ids="loaded", alike=True, share=0.04, size=256
    ),
    "generated, fixed": Scenario(fix=True, rounds=8),
    "loaded, fixed": Scenario(ids="loaded", fix=True, rounds=8),
    "no task, fixed": Scenario(ids="none", fix=True, rounds=8),
    "generated, repeating, fixed": Scenario(repeat=True, broken=True, fix=True, rounds=8),
    "generated, fixed, rounds of 32": Scenario(fix=True, size=32, rounds=12),
    "generated, drift": Scenario(drift=True, rounds=8),
    "generated, a large healthy kind": Scenario(large=True, share=0.06, size=256),
    "loaded, a large healthy kind": Scenario(ids="loaded", large=True, share=0.06, size=256),
}


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
        kind = _draw_kind(scenario, number, chance)
        passes = FIXED if kind == WEAK and not old else PASSES[kind]
        if scenario.large and kind == LARGE:
            passes = LARGE_PASSES
        passed = chance.random() < passes and not (scenario.broken and kind == BROKEN)
        yield _build_rollout(scenario, name, kind, passed, old, chance)


def _draw_kind(scenario: Scenario, number: int, chance: random.Random) -> int:
    share = scenario.share
    if scenario.drift:
        share *= 2 * (1 - number / (scenario.rounds - 1))
    if chance.random() < share:
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
    words = [*_draw_topic(scenario, kind, chance), *chance.sample(NAMES, 2)]
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


def _draw_topic(scenario: Scenario, kind: int, chance: random.Random) -> list[str]:
    """Seven words of the kind; where requests are alike, five of the tool's two kinds' and two of
    its own."""
    if not scenario.alike:
        return chance.sample(OPENINGS[kind].split(), 7)
    of_tool = OPENINGS[kind // 2 * 2].split()
    own = of_tool[7:] if kind % 2 == 0 else OPENINGS[kind].split()[:3]
    return [*chance.sample(of_tool[:7], 5), *chance.sample(own, 2)]


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


def measure(scenario: Scenario, seeds: Sequence[int]) -> dict[str, Any]:
    """A row of the table."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-") as folder:
        plays = [play(scenario, seed, Path(folder)) for seed in seeds]
    begin = _first_counted(scenario)
    end = scenario.rounds // 2 if scenario.fix or scenario.drift else scenario.rounds
    weak = weak_pattern(scenario)
    counted = [lines for rounds in plays for lines in rounds[begin:end]]
    first = [lines[0].pattern == weak for lines in counted]
    resolved = [_is_resolved(lines, weak) for lines in counted]
    row: dict[str, Any] = {
        **asdict(scenario), "seeds": len(seeds), "first": _share(first),
        "resolved": _share(resolved),
    }  # fmt: skip
    if scenario.broken:
        row["broken_below"] = _share(
            [_priority(lines, BROKEN_PATTERN) < _priority(lines, weak) for lines in counted]
        )
    if scenario.fix:
        falls = [_rounds_to_fall(rounds, weak, end) for rounds in plays]
        row["rounds_to_fall"] = {"mean": sum(falls) / len(falls), "worst": max(falls)}
    return row


def _first_counted(scenario: Scenario) -> int:
    """Place of the first round that counts."""
    if not scenario.broken:
        return 1
    per_task = scenario.size * (1 - scenario.share) / (len(PASSES) - 1) / BROKEN_TASKS
    return max(1, ceil(1.5 * BROKEN_ATTEMPTS / per_task) - 1)


def _priority(lines: Sequence[PatternLine], pattern: str) -> float:
    return next((line.priority for line in lines if line.pattern == pattern), 0.0)


def _is_resolved(lines: Sequence[PatternLine], pattern: str) -> bool:
    return any(line.pattern == pattern and line.status == "RESOLVED" for line in lines)


def _rounds_to_fall(rounds: Sequence[Sequence[PatternLine]], weak: str, fix: int) -> int:
    before = _priority(rounds[fix - 1], weak)
    after = (place for place, lines in enumerate(rounds[fix:], start=1)
             if _priority(lines, weak) < before / 2)  # fmt: skip
    return next(after, len(rounds))


def _share(events: Sequence[bool]) -> dict[str, float]:
    low, high = wilson(sum(events), len(events))
    return {
        "value": round(sum(events) / len(events), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "rounds": len(events),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a line per row, or one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), metavar="NAME")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}; there are: {'; '.join(ROWS)}")
    table = {}
    for name in options.rows:
        table[name] = measure(ROWS[name], range(options.seeds))
        if not options.json:
            figures = {key: table[name].get(key) for key in
                       ("first", "resolved", "broken_below", "rounds_to_fall")}  # fmt: skip
            print(name, json.dumps(figures), flush=True)
    if options.json:
        print(json.dumps({"benchmark": "priorities", "rows": table}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
