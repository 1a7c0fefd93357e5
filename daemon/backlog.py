"""What this home has recorded and the fold has not reached yet.

An import asks it, so that a record that waits in the spool is not appended again; neither broker
nor fold is needed for the answer.
"""

from events.envelope import from_headers
from events.errors import BadRecord
from events.log import read_all
from events.position import Position
from events.sqlite import SqliteLog
from events.streams import ROLLOUTS


def waiting_ids(spool: SqliteLog, reached: Position) -> set[str]:
    """The ids of the spool's rollout events that the fold, at `reached`, has not folded."""
    folded = reached.get(ROLLOUTS.name, {})
    ends = spool.end(ROLLOUTS.name)
    found: set[str] = set()
    for partition, start in enumerate(spool.start(ROLLOUTS.name)):
        # In its own log a record's sequence is its offset.
        last = folded.get(str(partition), {}).get(spool.source, -1)
        first = max(start, last + 1)
        for page in read_all(spool, ROLLOUTS.name, partition, first, ends[partition]):
            for record in page:
                try:
                    found.add(from_headers(record.headers).id)
                except BadRecord:
                    continue  # no event of ours, so nothing that could be imported again
    return found
