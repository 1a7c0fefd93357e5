"""Schedules in the fields of crontab(5), as triggers of APScheduler. Five fields: minute, hour, day
of month, month, day of week. 0 and 7 are Sunday. Months and days have English names of three
letters. If both kinds of days are restricted, a day that fits either counts; if one of the two
fields begins with `*`, a day must fit both. Beyond crontab(5), a range of named days may run over
the end of the week (`fri-sun`), and `5/15` is `5-59/15`. UTC has no summer time, so each time of
the schedule comes once."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_COMPARED_DAYS: Final = 60
"""Number of days on which two readings of a line are compared; they differ early or never."""


class CrontabError(ValueError):
    """A line that is no schedule; its text names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: Sequence[str] = ()
    """Names of the values, from `low` on."""
    is_cyclic: bool = False
    """Whether a range that ends with a name may run over the end."""


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field(
        "month", 1, 12,
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ),
    _Field("day of week", 0, 7, _DAYS, is_cyclic=True),
)  # fmt: skip


def read_crontab(line: str) -> Any:
    """Return the trigger of a schedule, whose times are in UTC. Raises CrontabError."""
    texts = _split_line(line)
    minute, hour, day, month, weekday = (
        _read_field(field, text) for field, text in zip(_FIELDS, texts, strict=True)
    )
    weekdays = {number % 7 for number in weekday}
    is_either = not texts[2].startswith("*") and not texts[4].startswith("*")
    if not is_either and not any(
        first <= _LONGEST[number - 1] for first in day for number in month
    ):
        raise CrontabError(
            f"the fields day of month {texts[2]!r} and month {texts[3]!r} name no day of a year; "
            "correct one of them"
        )
    every = set(range(1, 32))
    choices = [(day, set(range(7))), (every, weekdays)] if is_either else [(day, weekdays)]
    triggers = [
        CronTrigger(
            minute=_join(minute),
            hour=_join(hour),
            day=_join(days),
            month=_join(month),
            # APScheduler counts the days from Monday.
            day_of_week=_join({(number - 1) % 7 for number in numbers}),
            timezone=UTC,
        )
        for days, numbers in choices
    ]
    return triggers[0] if len(triggers) == 1 else OrTrigger(triggers)


def list_next_times(line: str, after: datetime, count: int = 3) -> list[datetime]:
    """Return the next `count` times of a schedule after `after`."""
    return _list_times(read_crontab(line), after, count)


def describe_day_change(line: str, now: datetime) -> str | None:
    """Describe the first time that differs from earlier versions, which counted weekdays from
    Monday and required both kinds of days. Return None without one, or if they refused the line."""
    texts = _split_line(line)
    days = " ".join(("0", "0", *texts[2:]))
    try:
        before = CronTrigger.from_crontab(line, timezone=UTC)
        days_before = CronTrigger.from_crontab(days, timezone=UTC)
    except ValueError:
        return None
    start = now.astimezone(UTC)
    days_after = list_next_times(days, start, _COMPARED_DAYS)
    first = min({*_list_times(days_before, start, _COMPARED_DAYS)} ^ {*days_after}, default=None)
    if first is None:
        return None
    start = max(start, first - timedelta(microseconds=1))
    (following,) = list_next_times(line, start, 1)
    earlier = next(iter(_list_times(before, start, 1)), None)
    instead = "never" if earlier is None else f"on {earlier:%a %Y-%m-%d %H:%M}"
    return (
        f"{line!r} is read as crontab(5) says, with 0 and 7 for Sunday and either kind of day: its "
        f"first time that differs is {following:%a %Y-%m-%d %H:%M} UTC; by earlier versions, which "
        f"counted days from Monday and wanted both kinds, it would run {instead}"
    )


def _list_times(trigger: Any, after: datetime, count: int) -> list[datetime]:
    times: list[datetime] = []
    for _ in range(count):
        time = trigger.get_next_fire_time(None, after + timedelta(microseconds=1))
        if time is None:
            break
        times.append(time)
        after = time
    return times


def _split_line(line: str) -> list[str]:
    texts = line.split()
    if len(texts) == 1 and texts[0].startswith("@"):
        if (known := NICKNAMES.get(texts[0].lower())) is None:
            raise CrontabError(f"{texts[0][:40]!r} is not one of {', '.join(NICKNAMES)}")
        return known.split()
    if len(texts) != len(_FIELDS):
        raise CrontabError(
            f"{line[:80]!r} has {len(texts)} fields; write five: minute, hour, day of month, "
            "month, day of week; times are in UTC"
        )
    return texts


def _read_field(field: _Field, text: str) -> set[int]:
    if "" in text.split(","):
        raise CrontabError(
            f"{text[:20]!r} in the field {field.name} has a comma beside nothing; leave it out"
        )
    return {number for item in text.split(",") for number in _read_item(field, item)}


def _read_item(field: _Field, item: str) -> range:
    body, slash, step_text = item.partition("/")
    first, dash, last = body.partition("-")
    highest = 6 if field.is_cyclic else field.high
    if body == "*":
        low, high = field.low, highest
    else:
        low = _read_value(field, first)
        high = _read_value(field, last) if dash else highest if slash else low
        if field.is_cyclic and dash and high < low and not last.isdecimal():
            high += 7
    if high < low:
        raise CrontabError(
            f"the range {body[:20]!r} in the field {field.name} ends before it begins; write two: "
            f"{low}-{field.high},{field.low}-{high}"
        )
    step = int(step_text) if _is_number(step_text) else 0
    if slash and not 1 <= step <= field.high - field.low:
        raise CrontabError(
            f"the step {step_text[:20]!r} in the field {field.name} is no number from 1 to "
            f"{field.high - field.low}"
        )
    return range(low, high + 1, step or 1)


def _read_value(field: _Field, text: str) -> int:
    if text.lower() in field.names:
        return field.low + field.names.index(text.lower())
    if _is_number(text) and field.low <= int(text) <= field.high:
        return int(text)
    names = f", or one of {', '.join(field.names)}" if field.names else ""
    raise CrontabError(
        f"{text[:20]!r} in the field {field.name} is no number from {field.low} to {field.high}"
        f"{names}; write numbers, ranges such as {field.low}-{field.high}, steps such as */2, and "
        "commas between them: L, W, #, ? and ~ are not of crontab(5)"
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 2


def _join(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))
