"""Schedules mean what crontab(5) says: held against a plain matcher of minutes."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.config.crontab import (
    CrontabError,
    describe_day_change,
    list_next_times,
    read_crontab,
)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)  # a Wednesday
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def expand(text: str, low: int, high: int) -> set[int]:
    """Return the numbers of a field without names, as crontab(5) lists them."""
    numbers: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        numbers.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return numbers


def is_due(line: str, time: datetime) -> bool:
    """Return whether a minute matches a line: the rule of crontab(5), with nothing clever."""
    texts = line.split()
    fields = [expand(text, *bounds) for text, bounds in zip(texts, RANGES, strict=True)]
    day = time.day in fields[2]
    weekday = not {time.isoweekday() % 7, time.isoweekday()}.isdisjoint(fields[4])
    stars = texts[2].startswith("*") or texts[4].startswith("*")
    return (
        time.minute in fields[0]
        and time.hour in fields[1]
        and time.month in fields[3]
        and (day and weekday if stars else day or weekday)
    )


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    spans = st.tuples(numbers, numbers).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(st.just("*") | spans, st.integers(1, high - low)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    items = st.lists(numbers.map(str) | spans | steps, min_size=1, max_size=3).map(",".join)
    return st.just("*") | items


LINES = st.tuples(*(fields(*bounds) for bounds in RANGES)).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(LINES, st.integers(1990, 2090), st.integers(0, 364), st.integers(0, 86_399))
def test_times_are_those_of_a_matcher_of_minutes(
    line: str, year: int, day: int, second: int
) -> None:
    start = datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=day, seconds=second)
    try:
        times = list_next_times(line, start, 5)
    except CrontabError:
        days, months = (expand(line.split()[place], *RANGES[place]) for place in (2, 3))
        assert min(days) > 29
        assert months <= {2, 4, 6, 9, 11}
        return
    minute = start.replace(second=0, microsecond=0) + timedelta(minutes=1)
    end = minute + timedelta(days=60)
    expected: list[datetime] = []
    while minute < end and len(expected) < 5:
        # A day without a time is passed over at once.
        if not any(is_due_on(line, minute)):
            minute = minute.replace(hour=0, minute=0) + timedelta(days=1)
            continue
        if is_due(line, minute):
            expected.append(minute)
        minute += timedelta(minutes=1)
    assert [time for time in times if time < end] == expected


def is_due_on(line: str, time: datetime) -> list[bool]:
    """Return whether any time of a day can match, by its date alone."""
    return [is_due("* * " + " ".join(line.split()[2:]), time)]


@settings(max_examples=100, deadline=None)
@given(LINES, st.integers(1, 12), st.integers(0, 7))
def test_names_stand_for_their_numbers(line: str, month: int, weekday: int) -> None:
    start = " ".join(line.split()[:2])
    named = f"{start} * {MONTHS[month - 1].upper()} {DAYS[weekday % 7]}"
    assert list_next_times(named, NOW) == list_next_times(f"{start} * {month} {weekday}", NOW)


@pytest.mark.parametrize(
    ("line", "times"),
    [
        ("0 3 * * 0", ["Sun 2026-03-08 03:00", "Sun 2026-03-15 03:00"]),
        ("0 3 * * 7", ["Sun 2026-03-08 03:00", "Sun 2026-03-15 03:00"]),
        ("0 3 * * SUN", ["Sun 2026-03-08 03:00", "Sun 2026-03-15 03:00"]),
        ("0 3 * * 1", ["Mon 2026-03-09 03:00", "Mon 2026-03-16 03:00"]),
        ("0 0 * * fri-sun", ["Fri 2026-03-06 00:00", "Sat 2026-03-07 00:00"]),
        ("0 0 * * 5-7", ["Fri 2026-03-06 00:00", "Sat 2026-03-07 00:00"]),
        ("0 0 * * sat-mon/2", ["Sat 2026-03-07 00:00", "Mon 2026-03-09 00:00"]),
        ("0 0 * jan,mar sun-tue", ["Sun 2026-03-08 00:00", "Mon 2026-03-09 00:00"]),
        ("0 0 13 * fri", ["Fri 2026-03-06 00:00", "Fri 2026-03-13 00:00"]),
        ("0 0 */2 * fri", ["Fri 2026-03-13 00:00", "Fri 2026-03-27 00:00"]),
        ("0 0 29 2 *", ["Tue 2028-02-29 00:00", "Sun 2032-02-29 00:00"]),
        ("*/15 * * * *", ["Wed 2026-03-04 12:15", "Wed 2026-03-04 12:30"]),
        ("50/5 * * * *", ["Wed 2026-03-04 12:50", "Wed 2026-03-04 12:55"]),
        ("1-5/2 13 * * *", ["Wed 2026-03-04 13:01", "Wed 2026-03-04 13:03"]),
        ("@hourly", ["Wed 2026-03-04 13:00", "Wed 2026-03-04 14:00"]),
        ("@daily", ["Thu 2026-03-05 00:00", "Fri 2026-03-06 00:00"]),
        ("@Weekly", ["Sun 2026-03-08 00:00", "Sun 2026-03-15 00:00"]),
        ("@monthly", ["Wed 2026-04-01 00:00", "Fri 2026-05-01 00:00"]),
        ("@yearly", ["Fri 2027-01-01 00:00", "Sat 2028-01-01 00:00"]),
        ("\t0  3 * *\t0 ", ["Sun 2026-03-08 03:00", "Sun 2026-03-15 03:00"]),
    ],
)
def test_a_line_means_what_crontab_says(line: str, times: list[str]) -> None:
    assert [f"{time:%a %Y-%m-%d %H:%M}" for time in list_next_times(line, NOW, 2)] == times


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("* * * *", "has 4 fields; write five"),
        ("* * * * * *", "has 6 fields; write five"),
        ("60 * * * *", "'60' in the field minute is no number from 0 to 59"),
        ("* 24 * * *", "in the field hour is no number from 0 to 23"),
        ("* * 0 * *", "in the field day of month is no number from 1 to 31"),
        ("* * * 13 *", "in the field month is no number from 1 to 12, or one of jan, feb"),
        ("* * * * 8", "in the field day of week is no number from 0 to 7, or one of sun, mon"),
        ("* * * * 6-1", "in the field day of week ends before it begins; write two: 6-7,0-1"),
        ("* * * nov-feb *", "in the field month ends before it begins; write two: 11-12,1-2"),
        ("*/0 * * * *", "the step '0' in the field minute is no number from 1 to 59"),
        ("*/60 * * * *", "the step '60' in the field minute"),
        ("1-5/ * * * *", "the step '' in the field minute"),
        ("1,,2 * * * *", "'1,,2' in the field minute has a comma beside nothing"),
        ("0 0 L * *", "'L' in the field day of month is no number from 1 to 31; write numbers"),
        ("0 0 * * 1#2", "L, W, #, ? and ~ are not of crontab(5)"),
        ("CRON_TZ=Europe/Berlin 0 3 * * *", "has 6 fields; write five"),
        ("CRON_TZ=Europe/Berlin 0 3 * * *", "times are in UTC"),
        ("-1 * * * *", "'' in the field minute"),
        ("² * * * *", "'²' in the field minute"),
        ("9" * 5_000 + " * * * *", "in the field minute is no number"),
        ("* * last * *", "'last' in the field day of month"),
        ("0 0 30 2 *", "day of month '30' and month '2' name no day of a year"),
        ("@reboot", "'@reboot' is not one of @yearly"),
    ],
)
def test_an_error_names_the_field_and_the_remedy(line: str, said: str) -> None:
    with pytest.raises(CrontabError) as caught:
        read_crontab(line)
    assert said in str(caught.value)


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789*/-,@ \tsunJAn²", max_size=30))
def test_any_line_is_a_schedule_or_a_named_error(line: str) -> None:
    with suppress(CrontabError):
        assert list_next_times(line, NOW)


@pytest.mark.parametrize(
    ("line", "read_before"),
    [
        ("0 3 * * 0", "Mon 2026-03-09 03:00"),
        ("0 3 * * 1-5", "Sat 2026-03-07 03:00"),
        ("0 3 * * mon-fri/2", "Thu 2026-03-05 03:00"),
        ("0 3 * * */2", "Fri 2026-03-06 03:00"),
        ("0 3 13 * fri", "Fri 2026-03-13 03:00"),
        pytest.param("0 3 30 2 mon", "never", marks=pytest.mark.long),
    ],
)
def test_days_that_were_read_otherwise_are_named(line: str, read_before: str) -> None:
    change = describe_day_change(line, NOW)
    assert change is not None
    assert change.startswith(repr(line))
    assert change.endswith(read_before)
    _, _, after = change.partition("that differs is ")
    assert not after.startswith(read_before), "the two times are not the same"


@pytest.mark.parametrize(
    "line",
    [
        "0 3 * * *",
        "0 3 * * sun",
        "0 3 * * 7",
        "0 3 * * 0-6",
        "@weekly",
        "0 3 1 * *",
        "0 3 */2 * fri",
    ],
)
def test_days_that_were_read_alike_or_refused_are_not_named(line: str) -> None:
    assert describe_day_change(line, NOW) is None
