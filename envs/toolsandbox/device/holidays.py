"""The federal holidays of the United States, by their rules (5 U.S.C. 6103)."""

from datetime import date, timedelta
from functools import lru_cache
from typing import Final

_MONDAY, _THURSDAY, _SATURDAY, _SUNDAY = 0, 3, 5, 6

_FIXED: Final = (
    ("New Year's Day", 1, 1),
    ("Juneteenth National Independence Day", 6, 19),
    ("Independence Day", 7, 4),
    ("Veterans Day", 11, 11),
    ("Christmas Day", 12, 25),
)
_FLOATING: Final = (
    ("Martin Luther King Jr. Day", 1, _MONDAY, 3),
    ("Washington's Birthday", 2, _MONDAY, 3),
    ("Memorial Day", 5, _MONDAY, -1),
    ("Labor Day", 9, _MONDAY, 1),
    ("Columbus Day", 10, _MONDAY, 2),
    ("Thanksgiving", 11, _THURSDAY, 4),
)
"""Name, month, weekday, and number of this weekday in the month: -1 is the last."""

_JUNETEENTH: Final = 2021
"""The first year in which Juneteenth is a holiday."""


@lru_cache(maxsize=128)
def list_holidays(year: int) -> tuple[tuple[date, str], ...]:
    """Return (day, name) of a year's holidays in order. A holiday with a fixed date on a weekend
    appears again as observed, on the Friday before or the Monday after."""
    days: list[tuple[date, str]] = []
    for name, month, day in _FIXED:
        if name.startswith("Juneteenth") and year < _JUNETEENTH:
            continue
        exact = date(year, month, day)
        days.append((exact, name))
        shift = {_SATURDAY: -1, _SUNDAY: 1}.get(exact.weekday())
        if shift is not None:
            days.append((exact + timedelta(days=shift), f"{name} (observed)"))
    days.extend((_find_weekday(year, *rule), name) for name, *rule in _FLOATING)
    return tuple(sorted(day for day in days if day[0].year == year))


def _find_weekday(year: int, month: int, weekday: int, which: int) -> date:
    if which < 0:
        following = date(year + month // 12, month % 12 + 1, 1)
        last = following - timedelta(days=1)
        return last - timedelta(days=(last.weekday() - weekday) % 7)
    first = date(year, month, 1)
    return first + timedelta(days=(weekday - first.weekday()) % 7 + 7 * (which - 1))
