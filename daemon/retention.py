"""`kintsugi log trim`: dropping from the embedded log what an archive verifiably holds.

    plan(app, archive, before)    what may go, partition by partition
    trim(app, planned)            drop it

Of `rollouts` alone: `learning` is small, and holds why everything is as it is. An event goes when
it lies before the place that was named, the archive holds it and all before it bit for bit, the
tables hold it, the broker has it where one is configured, and no session that it is of is open.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.position import position
from consumers.retention import needed_from
from events.archive import Archive, Cut
from events.retention import held
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from daemon.app import App


@dataclass(frozen=True, slots=True)
class Portion:
    """What may go of one partition."""

    partition: int
    start: int
    before: int
    """Everything from `start` to before this offset."""
    kept_for: str | None
    """Why no more of what lies before the named place; None where all of it goes."""

    @property
    def events(self) -> int:
        return self.before - self.start


_REASONS: Final = ("archive", "tables", "broker", "sessions")


def plan(app: "App", archive: Archive, before: Cut) -> list[Portion]:
    """What may go; reads all of it, in the log and in the archive. Raises LogError, LogCorrupt."""
    return [_portion(app, archive, p, before[ROLLOUTS.name, p]) for p in range(ROLLOUTS.partitions)]


def _portion(app: "App", archive: Archive, partition: int, named: int) -> Portion:
    spool = app.spool
    start = spool.start(ROLLOUTS.name)[partition]
    end = max(start, named)
    limits = {
        "archive": archive.end(ROLLOUTS.name)[partition],
        "tables": _folded(app, partition),
        "broker": spool.shipped(ROLLOUTS.name)[partition] if app.on_kafka else end,
    }
    before = max(start, min(end, *limits.values()))
    if not app.on_kafka:
        # With Kafka, sessions are read from there.
        with app.reading() as connection:
            limits["sessions"] = needed_from(connection, partition, before)
        before = max(start, min(before, limits["sessions"]))
    proven = held(archive, spool, partition, before)
    assert proven == before, "the archive reaches as far as its end says"
    held_back = next((name for name in _REASONS if limits.get(name, end) == before < end), None)
    return Portion(partition, start, before, held_back)


def _folded(app: "App", partition: int) -> int:
    """The offset before which the tables hold all that this home recorded."""
    with app.reading() as connection:
        reached = position(connection).get(ROLLOUTS.name, {}).get(str(partition), {})
    return reached.get(app.spool.source, -1) + 1


def trim(app: "App", planned: list[Portion]) -> int:
    """Drop what was planned; how many events that were."""
    for portion in planned:
        if portion.events:
            app.spool.trim(ROLLOUTS.name, portion.partition, portion.before)
    return sum(portion.events for portion in planned)
