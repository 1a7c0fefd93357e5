"""Verdicts under two versions of our rules never count together."""

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, select

from consumers import database
from consumers.reads.rollouts import (
    OlderVerdicts,
    PatternLine,
    RuleChange,
    count_older_verdicts,
    read_rule_changes,
)
from consumers.tables import Rollout
from events.log import Entry
from events.memory import MemoryLog
from events.messages import Action
from events.rollouts import Task
from tests.consumers.diagnosis.test_neighbourhood import acted
from tests.consumers.diagnosis.test_rounds import MISSING, failure, patterns, success
from tests.consumers.folding import close_round, fold, fresh, hash_of, log_of

GOLD = (Action(name="cancel_order", arguments={"order_id": "1"}),)


def graded(
    name: str, rules: int | None, kind: str = "library/cancel", *, passed: bool = False,
    seed: int = 0, **fields: Any,
) -> Entry:  # fmt: skip
    """A rollout on a task of a kind, judged by a version of our rules; None: by somebody else."""
    task = Task(id=f"{kind}/{seed}", environment=kind.partition("/")[0], gold_actions=GOLD)
    grader = "recorded" if rules is None else f"{task.environment}/{rules}"
    make = success if passed else failure
    return make(name, task, grader=grader, **fields)


def lines(engine: Engine) -> dict[str, PatternLine]:
    return patterns(engine)


def changes(engine: Engine) -> list[RuleChange]:
    with database.read_transaction(engine) as connection:
        return read_rule_changes(connection)


def outdated(engine: Engine) -> dict[str, tuple[int | None, bool | None]]:
    table = Rollout.table().c
    with database.read_transaction(engine) as connection:
        rows = connection.execute(select(table.rollout, table.rules, table.outdated))
        return {row.rollout: (row.rules, row.outdated) for row in rows}


def test_patterns_begin_anew_where_newer_rules_judge_an_agents_traffic(engine: Engine) -> None:
    log = log_of([graded(f"a{n}", 1) for n in range(3)])
    close_round(log, engine, "one")
    log.append([graded(f"b{n}", 1) for n in range(3)])
    close_round(log, engine, "two")
    assert len(lines(engine)[MISSING].trend) == 2
    log.append([graded("c0", 2), graded("c1", 2, passed=True, seed=1)])
    close_round(log, engine, "three")
    line = lines(engine)[MISSING]
    assert (line.status, line.failures, line.attempts, line.passes) == ("NEW", 1, 2, 1)
    assert len(line.trend) == 1
    assert changes(engine) == [RuleChange("agent", "base", 2, "library", 1, 2, ("library/cancel",))]


def test_a_round_counts_the_newest_rules_of_a_kind_alone_and_keeps_the_older_verdicts(
    engine: Engine,
) -> None:
    log = log_of(
        [graded("old", 1), graded("new", 2, seed=1), graded("fine", 2, passed=True, seed=2)]
    )
    close_round(log, engine)
    line = lines(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes, line.examples) == (1, 2, 1, ["new"])
    assert outdated(engine) == {"old": (1, True), "new": (2, False), "fine": (2, False)}
    assert changes(engine) == []


def test_a_verdict_under_older_rules_that_comes_late_counts_no_more(engine: Engine) -> None:
    log = log_of([graded("new", 2)])
    close_round(log, engine, "one")
    log.append([graded("late", 1, seed=1), graded("newer", 2, seed=2)])
    close_round(log, engine, "two")
    assert lines(engine)[MISSING].examples == ["newer"]
    assert outdated(engine)["late"] == (1, True)
    assert changes(engine) == []


def test_an_agent_that_plays_loaded_tasks_alone_is_not_begun_anew_by_generated_ones(
    engine: Engine,
) -> None:
    log = log_of([graded("live0", 1, "library/base"), graded("probe0", 1, purpose="train")])
    close_round(log, engine, "one")
    log.append([graded("live1", 1, "library/base", seed=1), graded("probe1", 2, purpose="train")])
    close_round(log, engine, "two")
    assert len(lines(engine)[MISSING].trend) == 2
    assert changes(engine) == []


def test_verdicts_of_persons_and_other_graders_have_no_version_and_always_count(
    engine: Engine,
) -> None:
    log = log_of([graded("mine", 2), graded("theirs", None, seed=1)])
    close_round(log, engine)
    assert lines(engine)[MISSING].failures == 2
    assert outdated(engine) == {"mine": (2, False), "theirs": (None, False)}


def test_the_grader_that_an_imported_file_names_makes_no_verdict_old(engine: Engine) -> None:
    log = log_of([graded("mine", 1), graded("theirs", 999_999_999, seed=1, purpose="import")])
    close_round(log, engine)
    assert lines(engine)[MISSING].failures == 2
    assert outdated(engine) == {"mine": (1, False), "theirs": (None, False)}
    assert changes(engine) == []


def test_tasks_that_are_data_keep_the_rules_of_their_own_bodies(engine: Engine) -> None:
    bodies = [
        failure(
            name,
            Task(id=f"library/={name * 64}", environment="library", gold_actions=GOLD),
            grader=f"library/{rules}",
        )
        for name, rules in (("a", 1), ("b", 2))
    ]
    log = log_of(bodies)
    close_round(log, engine, "one")
    assert lines(engine)[MISSING].failures == 2
    assert changes(engine) == []


def test_what_a_person_silences_stays_silenced_when_patterns_begin_anew(engine: Engine) -> None:
    log = log_of([graded("a", 1)])
    close_round(log, engine, "one")
    log.append([acted("patterns mute", "mute")])
    fold(log, engine)
    log.append([graded("b", 2, seed=1)])
    close_round(log, engine, "two")
    line = lines(engine)[MISSING]
    assert (line.operator, line.priority, line.status, line.examples) == (
        "muted", 0.0, "NEW", ["b"],
    )  # fmt: skip
    assert len(line.trend) == 1


VERDICTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # round
        st.sampled_from(["library/cancel", "library/base", "own/x"]),
        st.booleans(),  # passed
        st.booleans(),  # the daemon's
    ),
    max_size=14,
)


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(old=VERDICTS, new=VERDICTS)
def test_patterns_after_a_change_are_those_of_the_new_verdicts_alone(
    old: list[tuple[int, str, bool, bool]], new: list[tuple[int, str, bool, bool]], tmp_path: Path
) -> None:
    """Every kind of the old verdicts is judged by newer rules in the first round after them."""
    kinds = sorted({kind for _, kind, _, _ in old})
    first = [graded(f"first {kind}", 2, kind, seed=999) for kind in kinds]
    later = [
        [
            graded(f"new {n}", 2, kind, passed=passed, seed=n, purpose="train" if own else "live")
            for n, (at, kind, passed, own) in enumerate(new)
            if at == number
        ]
        for number in range(4)
    ]
    folder = Path(mkdtemp(dir=tmp_path))
    both, alone, again = MemoryLog(), MemoryLog(), fresh(folder, "again")
    engines = [fresh(folder, name) for name in ("both", "alone")]
    for number in range(4):
        both.append(
            [
                graded(f"old {n}", 1, kind, passed=ok, seed=n, purpose="train" if own else "live")
                for n, (at, kind, ok, own) in enumerate(old)
                if at == number
            ]
        )
        close_round(both, engines[0], f"old {number}")
    for number, entries in enumerate(later):
        extra = first if number == 0 else []
        for log, engine in zip((both, alone), engines, strict=True):
            log.append([*extra, *entries])
            close_round(log, engine, f"new {number}")
    after, expected = ([_state(line) for line in lines(engine).values()] for engine in engines)
    assert after == expected
    fold(both, again)
    assert hash_of(again) == hash_of(engines[0])


def _state(line: PatternLine) -> tuple[object, ...]:
    return (
        line.pattern, line.failures, line.attempts, line.passes, line.pass_rate, line.priority,
        line.status, line.examples, line.trend,
    )  # fmt: skip


def test_verdicts_that_newer_rules_of_a_trial_have_replaced_are_counted(engine: Engine) -> None:
    log = log_of([graded("trial", 2, purpose="evaluate"), graded("a", 1), graded("b", 1, seed=1)])
    close_round(log, engine)
    with database.read_transaction(engine) as connection:
        assert count_older_verdicts(connection) == [OlderVerdicts("agent", "base", 2)]
    log.append([graded("c", 2)])
    close_round(log, engine, "two")
    with database.read_transaction(engine) as connection:
        assert count_older_verdicts(connection) == []
