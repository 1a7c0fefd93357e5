"""What failed waits longer each time, and is forgotten once nobody wants it."""

from datetime import UTC, datetime, timedelta

import pytest

from daemon.serving.backoff import FIRST_PAUSE, LONGEST_PAUSE, Backoff
from daemon.serving.desired_state import Delete, Load, Note, Step, Unload

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOAD = Load("http://one", "a")


def test_the_pause_doubles_up_to_its_longest_and_begins_anew_after_a_success() -> None:
    postponed, now = Backoff(), NOW
    pauses: list[timedelta] = []
    for _ in range(9):
        assert not postponed.waits(LOAD, now)
        postponed.record_failure(LOAD, now)
        pause = FIRST_PAUSE
        while postponed.waits(LOAD, now + pause):
            pause += timedelta(seconds=5)
        pauses.append(pause)
        now += pause
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-2:] == [LONGEST_PAUSE] * 2
    postponed.record_success(LOAD)
    postponed.record_failure(LOAD, now)
    assert not postponed.waits(LOAD, now + FIRST_PAUSE)


@pytest.mark.parametrize(
    ("step", "lost", "kept"),
    [
        (LOAD, (), False),
        (LOAD, ("http://other",), False),
        (LOAD, (LOAD.replica,), True),
        (Unload("http://one", "a"), (LOAD.replica,), True),
        (Delete("a"), (), False),
        (Delete("a"), (LOAD.replica,), True),
        (Note("a"), (LOAD.replica,), False),
    ],
)
def test_what_is_not_wanted_is_kept_only_where_it_could_not_be_seen(
    step: Step, lost: tuple[str, ...], kept: bool
) -> None:
    postponed = Backoff()
    postponed.record_failure(step, NOW)
    postponed.keep([step], ())
    assert len(postponed) == 1, "it is wanted"
    postponed.keep([Load("http://two", "b")], lost)
    assert bool(len(postponed)) == kept
    assert postponed.waits(step, NOW) == kept


def test_a_process_that_lives_for_months_remembers_what_is_wanted_now() -> None:
    postponed = Backoff()
    for number in range(1000):
        step = Load("http://one", f"adapter-{number}")
        postponed.record_failure(step, NOW)
        postponed.keep([step], ())
    assert len(postponed) == 1


def test_a_clock_that_is_set_back_makes_nobody_wait_for_the_hour() -> None:
    postponed = Backoff()
    postponed.record_failure(LOAD, NOW)
    assert postponed.waits(LOAD, NOW)
    assert not postponed.waits(LOAD, NOW - timedelta(hours=1))
