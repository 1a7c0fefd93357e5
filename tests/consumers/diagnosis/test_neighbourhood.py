"""Priorities on real traffic: what is counted around a failure, whose failures count, and what an
operator says of a pattern."""

import json
import random
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from consumers import database
from consumers.folds.overrides import MUTE, PIN, RELEASE
from consumers.reads.scheduling import scheduling
from consumers.tables import Pattern
from events.log import Entry
from events.memory import MemoryLog
from events.messages import Action
from events.rollouts import RolloutContent, Task
from events.serving import (
    AdapterProduced,
    AdapterStaged,
    OperatorActed,
    RouteChanged,
    RouteShare,
    ServingEvent,
)
from tests.consumers.diagnosis.planted_traffic import Scenario, play
from tests.consumers.diagnosis.test_rounds import GOLD, MISSING, failure, patterns, said, success
from tests.consumers.folding import at, close_round, entry, fold, fresh, hash_of, log_of

OTHER_GOLD = (Action(name="return_order", arguments={"order_id": "2"}),)


def task(kind: str, seed: int) -> Task:
    return Task(id=f"shop/{kind}/{seed}", gold_actions=GOLD)


def kind_of(kind: str, name: str, failures: int, passes: int, **fields: Any) -> list[Entry]:
    """Attempts of one generator, no two at the same task."""
    seeds = iter(range(1000))
    return [
        *(failure(f"{name}-f{n}", task=task(kind, next(seeds)), **fields) for n in range(failures)),
        *(success(f"{name}-s{n}", task=task(kind, next(seeds)), **fields) for n in range(passes)),
    ]


def route(*shares: tuple[str | None, float]) -> list[Entry]:
    """The base's route goes to these."""
    events: list[ServingEvent] = []
    for name in (adapter for adapter, _ in shares if adapter is not None):
        produced = AdapterProduced(
            adapter=name, alias="agent", base="base", sha256="0" * 64, path="/a", origin="push"
        )
        events += [
            produced,
            AdapterStaged(adapter=name, replicas=("http://r",), distance=0, from_base=1),
        ]
    parts = tuple(RouteShare(adapter=adapter, share=share) for adapter, share in shares)
    events.append(RouteChanged(alias="agent", base="base", shares=parts, why="operator"))
    return [entry(event, f"{shares}-{place}", at(0)) for place, event in enumerate(events)]


def acted(action: str, name: str, pattern: str = MISSING, alias: str = "agent") -> Entry:
    arguments = {"alias": alias, "pattern": pattern}
    event = OperatorActed(actor="ada", action=action, arguments=arguments, reason="says ada")
    return entry(event, name, at(0))


def test_where_tasks_never_repeat_the_passes_of_the_same_generator_count(engine: Engine) -> None:
    log = log_of([*kind_of("cancel", "a", 40, 10), *kind_of("pay", "b", 0, 50)])
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (40, 50, 10)
    assert line.pass_rate == (10 + 1) / (50 + 2)
    assert line.priority == 0.5 * 1.5 * (1 - 11 / 52)


def test_two_failures_of_a_large_healthy_generator_do_not_dilute_a_weak_one(
    engine: Engine,
) -> None:
    log = log_of([*kind_of("cancel", "a", 30, 10), *kind_of("pay", "b", 2, 198)])
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (32, 240, 208)
    share = (30 * 10 / 40 + 2 * 198 / 200) / 32
    weight = 32**2 / (30**2 / 40 + 2**2 / 200)
    assert abs(line.pass_rate - (share * weight + 1) / (weight + 2)) < 1e-12
    assert line.status == "NEW"


def test_a_loaded_task_is_the_neighbour_of_others_with_its_pivot_tool(engine: Engine) -> None:
    def of_tool(name: str, gold: tuple[Action, ...], passed: bool) -> Entry:
        report = success if passed else failure
        return report(name, task=Task(id=name, gold_actions=gold))

    log = log_of([
        *(of_tool(f"f{n}", GOLD, passed=False) for n in range(3)),
        *(of_tool(f"s{n}", GOLD, passed=True) for n in range(5)),
        *(of_tool(f"o{n}", OTHER_GOLD, passed=True) for n in range(7)),
    ])  # fmt: skip
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (3, 8, 5)


REQUESTS = {
    "swap": "please swap the shoes from my delivery for another size and colour",
    "stop": "stop the purchase because it was ordered yesterday by mistake",
}


def loaded(name: str, request: str, *, passed: bool, **fields: Any) -> Entry:
    """A task of an id that names no generator, whose opening request is `request`."""
    first, *others = said(name).messages
    content = RolloutContent(messages=(first.model_copy(update={"content": request}), *others))
    report = success if passed else failure
    return report(name, task=Task(id=name, gold_actions=GOLD), content=content, **fields)


def of_request(request: str, failures: int, passes: int, **fields: Any) -> list[Entry]:
    text = REQUESTS[request]
    return [
        *(loaded(f"{request}-f{n}", text, passed=False, **fields) for n in range(failures)),
        *(loaded(f"{request}-s{n}", text, passed=True, **fields) for n in range(passes)),
    ]


def test_a_rare_weakness_is_not_hidden_by_other_requests_to_the_same_tool(engine: Engine) -> None:
    log = log_of([*of_request("swap", 12, 8), *of_request("stop", 0, 180)])
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (12, 200, 188)
    share = (8 + 4 * 188 / 200) / (20 + 4)
    assert abs(line.pass_rate - (share * 24 + 1) / (24 + 2)) < 1e-12
    assert line.status == "NEW"


def test_a_request_like_no_other_has_most_of_its_pass_rate_from_its_tool(engine: Engine) -> None:
    log = log_of([*of_request("swap", 1, 0), *of_request("stop", 0, 9)])
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    share = (0 + 4 * 9 / 10) / (1 + 4)
    assert abs(line.pass_rate - (share * 5 + 1) / (5 + 2)) < 1e-12


def test_what_the_tool_alone_passes_resolves_no_pattern(engine: Engine) -> None:
    close_round(log := log_of(of_request("swap", 12, 8)), engine, "one")
    log.append(of_request("stop", 0, 180))
    close_round(log, engine, "two")
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (0, 180, 180)
    assert abs(line.pass_rate - (4 + 1) / (4 + 2)) < 1e-12
    assert line.status != "RESOLVED"


def test_near_passes_resolve_a_pattern_of_loaded_tasks(engine: Engine) -> None:
    close_round(log := log_of(of_request("swap", 12, 8)), engine, "one")
    log.append([loaded(f"again{n}", REQUESTS["swap"], passed=True) for n in range(30)])
    close_round(log, engine, "two")
    assert patterns(engine)[MISSING].status == "RESOLVED"


def test_a_failure_without_words_has_its_tool_alone_around_it(engine: Engine) -> None:
    log = log_of([
        *(loaded(f"f{n}", "12 34", passed=False) for n in range(6)),
        *(loaded(f"s{n}", "12 34", passed=True) for n in range(2)),
        *of_request("stop", 0, 12),
    ])  # fmt: skip
    close_round(log, engine)
    assert abs(patterns(engine)[MISSING].pass_rate - (14 + 1) / (20 + 2)) < 1e-12


def test_without_task_and_tool_the_requests_that_share_words_are_neighbours(
    engine: Engine, tmp_path: Path
) -> None:
    (lines,) = play(Scenario(ids="none", rounds=1), 1, tmp_path)
    (line,) = [line for line in lines if line.pattern == "tool_loop|*"]
    # The weak kind is 15 % of 128 rollouts and passes with .4; the others with .9 and more.
    assert line.failures < line.attempts < 64
    assert 0.25 < line.pass_rate < 0.65


def test_a_rollout_of_which_nothing_is_known_is_its_own_neighbour(engine: Engine) -> None:
    log = log_of(
        [failure(f"f{n}", task=None, content=None, termination="max_steps") for n in range(2)]
    )
    close_round(log, engine, "round")
    (line,) = patterns(engine).values()
    assert line.attempts == line.failures == 2


def test_a_fixed_pattern_is_watched_without_failures_and_resolves_by_its_neighbours(
    engine: Engine,
) -> None:
    log = log_of(kind_of("cancel", "a", 20, 10))
    close_round(log, engine, "one")
    log.append(kind_of("cancel", "b", 0, 30))
    close_round(log, engine, "two")
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (0, 30, 30)
    assert (line.status, line.priority) == ("RESOLVED", 0.0)


def test_a_task_that_nobody_passes_demotes_its_own_part_of_a_pattern(engine: Engine) -> None:
    broken = task("cancel", 5000)
    log = log_of([
        *(failure(f"b{n}", task=broken) for n in range(8)),
        *kind_of("cancel", "a", 8, 24),
    ])  # fmt: skip
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts) == (16, 40)
    rate = (24 + 1) / (40 + 2)
    assert abs(line.priority - 0.5 * 1.5 * (1 - rate) * (1 - 0.75 / 2)) < 1e-12


def test_one_pass_in_any_round_says_that_a_task_is_not_broken(engine: Engine) -> None:
    passed = task("cancel", 7)
    log = log_of([success("s", task=passed)])
    close_round(log, engine, "one")
    log.append([failure(f"b{n}", task=passed) for n in range(9)])
    close_round(log, engine, "two")
    with database.read_transaction(engine) as connection:
        rows = connection.execute(select(Pattern.table().c.learnability)).scalars().all()
    assert rows == [1.0]


def test_failures_of_a_policy_that_answers_no_more_count_in_no_number(engine: Engine) -> None:
    log = log_of([*route(("better", 1.0)), *kind_of("cancel", "old", 20, 5)])
    log.append(kind_of("cancel", "new", 2, 8, policy="better"))
    log.append(kind_of("cancel", "imported", 1, 1, policy="elsewhere", purpose="import"))
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        numbers = scheduling(connection, "agent", "base", at(0))
    assert (numbers.rollouts, numbers.failed) == (37, 3)
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (3, 12, 9)
    with database.read_transaction(engine) as connection:
        assert scheduling(connection, "agent", "base", at(0)).failed == 3
    log.append(kind_of("cancel", "older", 9, 0))
    close_round(log, engine, "nothing fresh")
    assert patterns(engine)[MISSING] == line


def test_both_arms_of_a_canary_answer(engine: Engine) -> None:
    log = log_of([*route((None, 0.5), ("better", 0.5)), *kind_of("cancel", "old", 3, 5)])
    log.append(kind_of("cancel", "new", 2, 8, policy="better"))
    close_round(log, engine)
    assert (patterns(engine)[MISSING].failures, patterns(engine)[MISSING].attempts) == (5, 18)


def test_the_order_of_the_rollouts_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    entries = [
        *kind_of("cancel", "a", 12, 9),
        *kind_of("pay", "b", 3, 20),
        *(failure(f"t{n}", task=Task(id=f"t{n % 3}", gold_actions=GOLD)) for n in range(20)),
        *(failure(f"w{n}", task=None, content=said(f"{n}")) for n in range(5)),
        *(loaded(f"u{n}", f"{REQUESTS['swap']} {'abcdefgh'[n % 8] * (3 + n)}", passed=n > 50)
          for n in range(60)),
    ]  # fmt: skip
    shuffled = list(entries)
    random.Random(7).shuffle(shuffled)
    other = fresh(tmp_path, "other")
    close_round(log_of(entries), engine)
    close_round(log_of(shuffled), other)
    assert patterns(engine) == patterns(other)
    with database.read_transaction(engine) as ours, database.read_transaction(other) as theirs:
        query = select(Pattern.table()).order_by(Pattern.table().c.pattern)
        assert ours.execute(query).all() == theirs.execute(query).all()


def two_patterns() -> list[Entry]:
    weaker = [
        failure(f"o{n}", task=Task(id=f"shop/return/{n}", gold_actions=OTHER_GOLD),
                write_tools=("return_order",))
        for n in range(2)
    ]  # fmt: skip
    return [*kind_of("cancel", "a", 9, 3), *weaker]


RETURN = "missing_write_action|return_order"


def test_a_pinned_pattern_is_first_until_it_is_released(engine: Engine) -> None:
    log = log_of(two_patterns())
    close_round(log, engine, "one")
    before = patterns(engine)
    assert before[MISSING].priority > before[RETURN].priority
    log.append([acted(PIN, "pin", RETURN)])
    fold(log, engine)
    pinned = patterns(engine)
    assert list(pinned) == [RETURN, MISSING]
    assert pinned[RETURN].priority == pinned[MISSING].priority == before[MISSING].priority
    assert (pinned[RETURN].operator, pinned[RETURN].reason) == ("pinned", "says ada")
    for number in range(3):
        log.append(kind_of("cancel", f"later{number}", 5, 5))
        close_round(log, engine, f"later{number}")
    line = patterns(engine)[RETURN]
    assert (line.failures, line.operator) == (0, "pinned")
    assert line.status != "RESOLVED"
    assert next(iter(patterns(engine))) == RETURN
    log.append([acted(RELEASE, "release", RETURN)])
    log.append(kind_of("cancel", "last", 5, 5))
    close_round(log, engine, "last")
    line = patterns(engine)[RETURN]
    assert (line.operator, line.reason, line.status, line.priority) == (None, None, "RESOLVED", 0)


def test_a_muted_pattern_has_no_priority_and_is_counted_on(engine: Engine, tmp_path: Path) -> None:
    log = log_of(two_patterns())
    close_round(log, engine, "one")
    before = patterns(engine)[MISSING].priority
    log.append([acted(MUTE, "mute"), acted(MUTE, "unknown", "tool_loop|*"),
                acted(MUTE, "elsewhere", RETURN, alias="other")])  # fmt: skip
    fold(log, engine)
    assert patterns(engine)[MISSING].priority == 0
    assert patterns(engine)[RETURN].operator is None
    log.append(kind_of("cancel", "later", 5, 5))
    close_round(log, engine, "two")
    line = patterns(engine)[MISSING]
    assert (line.failures, line.priority, line.operator) == (5, 0, "muted")
    rebuilt = fresh(tmp_path, "rebuilt")
    fold(log, rebuilt)
    assert hash_of(rebuilt) == hash_of(engine)
    log.append([acted(RELEASE, "release")])
    fold(log, engine)
    assert patterns(engine)[MISSING].priority > before


def test_a_pinned_pattern_alone_has_a_priority_although_it_was_resolved(engine: Engine) -> None:
    log = log_of(kind_of("cancel", "a", 9, 3))
    close_round(log, engine, "one")
    log.append(kind_of("cancel", "b", 0, 40))
    close_round(log, engine, "two")
    assert patterns(engine)[MISSING].status == "RESOLVED"
    log.append([acted(PIN, "pin")])
    fold(log, engine)
    line = patterns(engine)[MISSING]
    assert line.status == "ACTIVE"
    assert line.priority > 0
    log.append([acted(MUTE, "mute"), acted(RELEASE, "release")])
    fold(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.operator, line.status, line.priority) == (None, "RESOLVED", 0)


def test_a_pattern_keeps_its_anchors_in_its_row(engine: Engine) -> None:
    log = MemoryLog()
    for number, (cancels, pays) in enumerate([(8, 0), (0, 2)]):
        log.append(kind_of("cancel", f"c{number}", cancels, 0))
        log.append(kind_of("pay", f"p{number}", pays, 0))
        close_round(log, engine, f"{number}")
    with database.read_transaction(engine) as connection:
        (anchors,) = connection.execute(select(Pattern.table().c.anchors)).scalars()
    assert json.loads(anchors) == {"kind:shop/cancel": 4.0, "kind:shop/pay": 2.0}
