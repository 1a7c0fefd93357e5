"""What this home has recorded and the fold has not reached yet.

An import asks it, so that a record that waits in the spool is not appended again; neither broker
nor fold is needed for the answer.
"""

from collections.abc import Mapping

from events.envelope import from_headers
from events.errors import BadRecord
from events.log import read_all
from events.position import Position
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS


def read_pending_ids(spool: SqliteLog, reached: Position) -> set[str]:
    """The ids of the spool's rollout events that the fold, at `reached`, has not folded."""
    folded = reached.get(ROLLOUTS.name, {})
    ends = spool.end(ROLLOUTS.name)
    ids: set[str] = set()
    for partition, start in enumerate(spool.start(ROLLOUTS.name)):
        sequences = folded.get(str(partition), {})
        first = max(start, _find_next_offset(spool, partition, sequences))
        for page in read_all(spool, ROLLOUTS.name, partition, first, ends[partition]):
            for record in page:
                if record.sequence <= sequences.get(record.source, -1):
                    continue  # a copy of what another home recorded
                try:
                    ids.add(from_headers(record.headers).id)
                except BadRecord:
                    continue  # no event of ours, so nothing that could be imported again
    return ids


def _find_next_offset(spool: SqliteLog, partition: int, sequences: Mapping[str, int]) -> int:
    """The offset after the last of its own records that was folded; what is copied of others' lies
    before all of these, and is folded before them."""
    last = sequences.get(spool.source)
    return 0 if last is None else spool.copy_end(ROLLOUTS.name, partition) + last + 1
