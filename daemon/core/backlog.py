"""The events of this home's spool that the fold has not reached. An import does not append them
again; the answer needs neither broker nor fold."""

from collections.abc import Mapping

from events.envelope import from_headers
from events.errors import BadRecord
from events.log import read_all
from events.position import Position
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS


def read_pending_ids(spool: SqliteLog, reached: Position) -> set[str]:
    """Return the ids of the spool's rollout events that the fold has not folded at `reached`."""
    folded = reached.get(ROLLOUTS.name, {})
    ends = spool.end(ROLLOUTS.name)
    ids: set[str] = set()
    for partition, start in enumerate(spool.start(ROLLOUTS.name)):
        sequences = folded.get(str(partition), {})
        first = max(start, _find_next_offset(spool, partition, sequences))
        for page in read_all(spool, ROLLOUTS.name, partition, first, ends[partition]):
            for record in page:
                if record.sequence <= sequences.get(record.source, -1):
                    continue  # a copy of an event that another home recorded
                try:
                    ids.add(from_headers(record.headers).id)
                except BadRecord:
                    continue  # not a rollout event, so no import repeats it
    return ids


def _find_next_offset(spool: SqliteLog, partition: int, sequences: Mapping[str, int]) -> int:
    """Return the offset after the last folded own record; earlier copies are folded too."""
    last = sequences.get(spool.source)
    return 0 if last is None else spool.copy_end(ROLLOUTS.name, partition) + last + 1
