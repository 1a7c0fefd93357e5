"""Metrics of the log and its fold. The role `schedule` reads them, so they also report a fold that
has halted, hangs or never started. The log is the folded one: Kafka's, else the home's own."""

from typing import TYPE_CHECKING, Final

from consumers.reads import rollouts, spools
from consumers.tables import PROJECTION
from daemon.core.health import find_halts, find_oldest_backlog_ms, read_fold_state
from daemon.core.spool_reporter import SILENT_SECONDS
from daemon.metrics.families import Family, Sheet
from daemon.metrics.observations import BackgroundCollector
from events.streams import STREAMS

if TYPE_CHECKING:
    from consumers.reads.spools import SpoolState
    from daemon.config.settings import Settings
    from daemon.core.app import App
    from daemon.core.health import FoldState
    from events.log import EventLog

STATES: Final = ("live", "halted")

LOG: Final = (
    Family("kintsugi_log_start_offset", "Of the oldest event.", ("stream", "partition")),
    Family("kintsugi_log_end_offset", "After the newest event.", ("stream", "partition")),
    Family(
        "kintsugi_projection_offset", "Where the fold reads on.",
        ("projection", "stream", "partition"),
    ),
    Family(
        "kintsugi_projection_lag_events", "Between that and the log's end.",
        ("projection", "stream", "partition"),
    ),
    Family(
        "kintsugi_projection_oldest_unfolded_timestamp_seconds",
        "When the first event that is not folded was recorded; absent without one.",
        ("projection", "stream"),
    ),
    Family("kintsugi_projection_state", "1 for how it is.", ("projection", "state")),
    Family(
        "kintsugi_projection_halted_info", "1 for why; absent where it goes on.",
        ("projection", "reason"),
    ),
    Family("kintsugi_projection_gaps", "Sources that lack an event.", ("projection",)),
    Family(
        "kintsugi_dead_letters",
        "Events that could not be folded, and sessions that could not become rollouts.",
        ("projection", "stream"),
    ),
    Family(
        "kintsugi_spools", "Homes' own logs that are shipped; silent: nobody tells of it any more.",
        ("state",),
    ),
    Family(
        "kintsugi_spools_unfolded_events",
        "What the tables lack of them, as far as their owners have told.", ("state",),
    ),
    Family(
        "kintsugi_spools_silent_timestamp_seconds",
        "When the one was told of last that is silent for longest; absent without one.",
    ),
)  # fmt: skip


def log(settings: "Settings") -> BackgroundCollector:
    """Return the collector of the metrics about the log and its fold."""
    return BackgroundCollector("log", LOG, settings, read)


def read(app: "App", sheet: Sheet) -> None:
    """Add the samples of `LOG` to a sheet. The log is read last, so it is never behind the fold."""
    with app.reading() as connection:
        reached = read_fold_state(connection)
        letters = rollouts.dead_letter_counts(connection)
        entries = spools.read_spools(connection)
    events = app.readable_log
    for stream in STREAMS:
        sheet.say("kintsugi_dead_letters", letters.get(stream, 0), PROJECTION, stream)
        _stream(events, reached, sheet, stream)
    for stream, oldest in find_oldest_backlog_ms(events, reached).items():
        name = "kintsugi_projection_oldest_unfolded_timestamp_seconds"
        sheet.say(name, oldest / 1000, PROJECTION, stream)
    halted = find_halts(events, reached)
    sheet.one_of("kintsugi_projection_state", "halted" if halted else "live", STATES, PROJECTION)
    for reason in sorted({halt.reason for halt in halted}):
        sheet.say("kintsugi_projection_halted_info", 1, PROJECTION, reason)
    sheet.say("kintsugi_projection_gaps", len(reached.gaps), PROJECTION)
    _spools(sheet, entries)


def _spools(sheet: Sheet, entries: "list[SpoolState]") -> None:
    silent = [entry for entry in entries if entry.age_seconds > SILENT_SECONDS]
    live = [entry for entry in entries if entry.age_seconds <= SILENT_SECONDS]
    for state, group in (("live", live), ("silent", silent)):
        sheet.say("kintsugi_spools", len(group), state)
        unfolded = sum(entry.unfolded for entry in group)
        sheet.say("kintsugi_spools_unfolded_events", unfolded, state)
    longest = min((entry.seen for entry in silent), default=None)
    sheet.say("kintsugi_spools_silent_timestamp_seconds", longest)


def _stream(events: "EventLog", reached: "FoldState", sheet: Sheet, stream: str) -> None:
    for partition, (start, end) in enumerate(
        zip(events.start(stream), events.end(stream), strict=True)
    ):
        at = str(partition)
        offset = reached.offsets.get((stream, partition), 0)
        behind = max(0, end - max(start, offset))
        sheet.say("kintsugi_log_start_offset", start, stream, at)
        sheet.say("kintsugi_log_end_offset", end, stream, at)
        sheet.say("kintsugi_projection_offset", offset, PROJECTION, stream, at)
        sheet.say("kintsugi_projection_lag_events", behind, PROJECTION, stream, at)
