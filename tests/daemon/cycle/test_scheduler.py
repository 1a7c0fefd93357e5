"""When a cycle is due: every trigger, and everything that holds one back."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.reads.scheduling import Scheduling
from daemon.config.crontab import read_crontab
from daemon.config.settings import Scheduler
from daemon.cycle.scheduler import (
    Due,
    NotDue,
    decide,
    find_last_slot,
    list_change_times,
)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
SETTINGS = Scheduler(
    min_rollouts=100, min_priority=2.0, max_age_seconds=86400, min_failures=5, cooldown_seconds=60,
    backoff=2, budget_minutes=30,
)  # fmt: skip
QUIET = Scheduling(
    alias="agent", base="base-1", position={}, number=1, is_open=False, rollouts=10, judged=10,
    failed=9, priority=0.5, first_seen=NOW - timedelta(hours=1), last_started=None,
    last_ended=None, fruitless=0, job_seconds=0.0,
)  # fmt: skip


def test_a_quiet_agent_waits_and_says_what_is_missing() -> None:
    found = decide(QUIET, SETTINGS, NOW)
    assert found == NotDue(
        ("90 more rollouts, of 100, or 1.5 more priority, of 2, or an age of 86400 s",)
    )


@pytest.mark.parametrize(
    ("change", "trigger"),
    [
        ({"rollouts": 100}, "rollouts"),
        ({"priority": 2.0}, "priority"),
        ({"first_seen": NOW - timedelta(days=1)}, "age"),
        ({"asked": "event-1"}, "operator"),
    ],
)
def test_each_trigger_trips_at_its_threshold(change: dict[str, object], trigger: str) -> None:
    found = decide(replace(QUIET, **change), SETTINGS, NOW)  # type: ignore[arg-type]
    assert isinstance(found, Due)
    assert found.trigger == trigger
    assert found.acted == change.get("asked")


def test_an_agent_waits_with_the_largest_numbers_that_settings_hold() -> None:
    largest = Scheduler(
        min_rollouts=10**12, min_priority=1e12, max_age_seconds=1e9, min_failures=10**12,
        cooldown_seconds=1e9, backoff=100, budget_minutes=1e7,
    )  # fmt: skip
    facts = replace(QUIET, last_ended=NOW, fruitless=9)
    assert isinstance(decide(facts, largest, NOW), NotDue)
    assert max(list_change_times(facts, largest, NOW)).year > 2100


def test_a_point_of_the_schedule_that_passed_makes_one_due_once() -> None:
    nightly = SETTINGS.model_copy(update={"cron": "0 3 * * *"})
    late = replace(QUIET, first_seen=NOW - timedelta(days=3))
    found = decide(late, nightly.model_copy(update={"max_age_seconds": 1e9}), NOW)
    assert isinstance(found, Due)
    assert (found.trigger, found.slot) == ("cron", "2026-03-04T03:00:00.000000Z")
    done = replace(late, last_started=NOW - timedelta(hours=1))
    assert isinstance(decide(done, nightly, NOW), NotDue)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_open": True}, "a cycle of agent is running"),
        ({"job_seconds": 1800.0}, "scheduler.budget_minutes is 30"),
        ({"failed": 4}, "1 more failures, of 5"),
        ({"last_ended": NOW - timedelta(seconds=20)}, "40 s of cool-down"),
    ],
)
def test_what_holds_back_is_said_alone(change: dict[str, object], said: str) -> None:
    found = decide(replace(QUIET, rollouts=1000, **change), SETTINGS, NOW)  # type: ignore[arg-type]
    assert isinstance(found, NotDue)
    assert len(found.missing) == 1
    assert said in found.missing[0]


@pytest.mark.parametrize("change", [{"is_open": True}, {"job_seconds": 1800.0}])
def test_a_person_cannot_wish_away_what_cannot_run(change: dict[str, object]) -> None:
    asked = replace(QUIET, asked="event-1", **change)  # type: ignore[arg-type]
    assert isinstance(decide(asked, SETTINGS, NOW), NotDue)


def test_a_person_passes_over_cool_down_and_too_few_failures() -> None:
    asked = replace(QUIET, asked="event-1", failed=0, last_ended=NOW)
    assert isinstance(decide(asked, SETTINGS, NOW), Due)


def test_cycles_that_changed_nothing_are_followed_by_longer_waits() -> None:
    enough = replace(QUIET, rollouts=150, failed=50)
    assert isinstance(decide(enough, SETTINGS, NOW), Due)
    again = decide(replace(enough, fruitless=1), SETTINGS, NOW)
    assert isinstance(again, NotDue)
    assert again.missing[0].startswith("50 more rollouts, of 200")
    few = decide(replace(enough, fruitless=1, failed=7), SETTINGS, NOW)
    assert isinstance(few, NotDue)
    assert few.missing[0] == "3 more failures, of 10 (1 cycle in a row changed nothing)"


@given(
    rollouts=st.integers(0, 500), failures=st.integers(0, 50), fruitless=st.integers(0, 20),
    more=st.integers(0, 100),
)  # fmt: skip
def test_more_rollouts_never_make_a_cycle_less_due(
    rollouts: int, failures: int, fruitless: int, more: int
) -> None:
    facts = replace(QUIET, rollouts=rollouts, failed=failures, fruitless=fruitless)
    after = replace(facts, rollouts=rollouts + more, failed=failures + more)
    if isinstance(decide(facts, SETTINGS, NOW), Due):
        assert isinstance(decide(after, SETTINGS, NOW), Due)


@given(st.integers(0, 10), st.integers(0, 10))
def test_waiting_grows_with_fruitless_cycles_and_has_an_end(fewer: int, more: int) -> None:
    if fewer > more:
        fewer, more = more, fewer
    ready = replace(QUIET, rollouts=100 * 2**4, failed=5 * 2**4)
    assert isinstance(decide(replace(ready, fruitless=more), SETTINGS, NOW), Due)
    less = replace(QUIET, rollouts=100 * 2**fewer - 1, failed=1000, fruitless=more)
    assert isinstance(decide(less, SETTINGS, NOW), NotDue) or fewer > 4


def test_there_is_no_slot_without_a_schedule_or_before_anything_happened() -> None:
    assert find_last_slot("", NOW, NOW) is None
    assert find_last_slot("* * * * *", None, NOW) is None


def steps(monkeypatch: pytest.MonkeyPatch, cron: str, missed: timedelta) -> int:
    """How often a schedule is asked for its next point to find the last one."""
    asked = 0
    following = CronTrigger.get_next_fire_time

    def count(trigger: CronTrigger, *arguments: object) -> object:
        nonlocal asked
        asked += 1
        return following(trigger, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CronTrigger, "get_next_fire_time", count)
        assert find_last_slot(cron, NOW - missed, NOW) is not None
    return asked


@pytest.mark.parametrize("cron", ["* * * * *", "*/5 * * * *", "0 3 * * *", "* * * 1 *"])
def test_a_long_sleep_costs_no_more_than_a_few_questions(
    cron: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps(monkeypatch, cron, timedelta(days=400)) <= 40


@settings(max_examples=60, deadline=None)
@given(
    cron=st.sampled_from(
        ["* * * * *", "*/7 * * * *", "0 3 * * *", "30 1,13 * * 1-5", "15 */6 1 * *", "* 4 * * *"]
    ),
    missed=st.integers(0, 3 * 24 * 3600),
    shift=st.integers(0, 400 * 24 * 3600),
)
def test_the_last_slot_is_that_of_a_walk_through_all_of_them(
    cron: str, missed: int, shift: int
) -> None:
    now = NOW + timedelta(seconds=shift, milliseconds=shift % 1000)
    since = now - timedelta(seconds=missed)
    trigger = read_crontab(cron)
    walked, following = None, trigger.get_next_fire_time(None, since + timedelta(microseconds=1))
    while following is not None and following <= now:
        walked = following
        following = trigger.get_next_fire_time(None, walked + timedelta(microseconds=1))
    assert find_last_slot(cron, since, now) == walked


def test_the_schedule_is_in_utc_whatever_the_zone_of_the_moments() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    since = datetime(2026, 3, 28, 12, tzinfo=berlin)
    now = datetime(2026, 3, 29, 12, tzinfo=berlin)  # the clock went from 02:00 to 03:00
    found = find_last_slot("30 2 * * *", since, now)
    assert found == datetime(2026, 3, 29, 2, 30, tzinfo=UTC)
    assert find_last_slot("30 2 * * *", found, now) is None


def test_a_clock_that_was_set_back_far_holds_back_no_cycle() -> None:
    """What ended in the future did so by another clock."""
    enough = replace(QUIET, rollouts=150, failed=50)
    ahead = replace(enough, last_ended=NOW + timedelta(days=30))
    assert isinstance(decide(ahead, SETTINGS, NOW), Due)
    skewed = replace(enough, last_ended=NOW + timedelta(seconds=5))
    assert isinstance(decide(skewed, SETTINGS, NOW), NotDue)
    assert find_last_slot("* * * * *", NOW + timedelta(days=30), NOW) is None


def test_missed_slots_collapse_to_the_last() -> None:
    found = find_last_slot("0 * * * *", NOW - timedelta(hours=5, minutes=30), NOW)
    assert found == NOW
    assert find_last_slot("0 * * * *", NOW, NOW + timedelta(minutes=59)) is None
