"""Parse a place in a log, which has one of three forms. `2026-05-01T12:00:00Z` is after all events
recorded until then. `learning@17` is before decision 17, with the rollouts recorded until then.
`rollouts@0,0,4,0,0,0,0,0;learning@5` is an offset for each partition."""

import re
from typing import TYPE_CHECKING

from events.archive.archive import Cut, ends
from events.archive.views import cut_at, starts
from events.envelope import parse_timestamp
from events.errors import KintsugiError, WrongUsage
from events.streams import LEARNING, ROLLOUTS, STREAMS

if TYPE_CHECKING:
    from events.log import EventLog

FORMS = "a time like 2026-05-01T12:00:00Z, learning@N, or rollouts@N,N,N,N,N,N,N,N;learning@N"


class NoPlace(WrongUsage):
    """The text names no place in this log, or the range ends before it begins."""


def between(log: "EventLog", begin: str | None, end: str | None) -> tuple[Cut | None, Cut]:
    """Return a range's start, None for the log's start, and its end, by default the log's end."""
    until = ends(log) if end is None else cut(log, end)
    if begin is None:
        return None, until
    since = cut(log, begin)
    for (stream, partition), offset in since.items():
        if offset > until[stream, partition]:
            raise NoPlace(
                f"{begin!r} begins behind {'the end of the log' if end is None else repr(end)}: "
                f"{stream}/{partition} at offset {offset}, after {until[stream, partition]}; name "
                "an earlier place to begin at"
            )
    return since, until


def cut(log: "EventLog", text: str) -> Cut:
    """Return each partition's offset at the place that `text` names. Raise NoPlace."""
    if "@" not in text:
        return cut_at(log, _milliseconds(text))
    named = _offsets(text)
    _check_within(log, text, named)
    if ROLLOUTS.name not in named:
        return _before_decision(log, named[LEARNING.name][0])
    position = ends(log)
    position |= {
        (stream, p): at for stream, offsets in named.items() for p, at in enumerate(offsets)
    }
    return position


def _milliseconds(text: str) -> int:
    try:
        return int(parse_timestamp(text).timestamp() * 1000)
    except (KintsugiError, ValueError) as error:
        raise NoPlace(f"{text!r} is no place in the log; write {FORMS}") from error


def _offsets(text: str) -> dict[str, list[int]]:
    named: dict[str, list[int]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        stream, _, offsets = part.partition("@")
        numbers = [number.strip() for number in offsets.split(",")]
        count = STREAMS[stream].partitions if stream in STREAMS else None
        if len(numbers) != count or not all(
            re.fullmatch(r"\d{1,18}", digits) for digits in numbers
        ):
            raise NoPlace(f"{text!r} is no place in the log; write {FORMS}")
        named[stream] = [int(number) for number in numbers]
    return named


def _check_within(log: "EventLog", text: str, named: dict[str, list[int]]) -> None:
    first, last = starts(log), ends(log)
    for stream, offsets in named.items():
        for partition, offset in enumerate(offsets):
            at = (stream, partition)
            if not first[at] <= offset <= last[at]:
                raise NoPlace(
                    f"{text!r} is no place in this log: {stream}/{partition} holds offsets "
                    f"{first[at]} to {last[at]} (exclusive)"
                )


def _before_decision(log: "EventLog", number: int) -> Cut:
    at = (LEARNING.name, 0)
    first = starts(log)
    if number <= first[at]:
        return first
    (last,) = log.read(*at, number - 1, limit=1)
    return cut_at(log, last.recorded_ms) | {at: number}
