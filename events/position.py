"""A position: how far each source has been folded, per stream and partition.

    {"rollouts": {"0": {"<source>": 12}}, "learning": {"0": {"<source>": 3}}}

A source is one process's own log; its sequence is that log's offset. Broker offsets never appear,
so a position is valid on the embedded log, on Kafka, and after a log was copied.
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

Partition = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,3})$")]
Sequence = Annotated[int, Field(ge=0, lt=2**63)]

Position = dict[str, dict[Partition, dict[str, Sequence]]]
"""stream -> partition (decimal) -> source -> last sequence folded."""


def entries(position: Position) -> Iterator[tuple[str, int, str, int]]:
    """Yield (stream, partition, source, last sequence), in canonical order."""
    for stream in sorted(position):
        for partition in sorted(position[stream], key=int):
            for source, sequence in sorted(position[stream][partition].items()):
                yield stream, int(partition), source, sequence


def covers(later: Position, earlier: Position) -> bool:
    """Return whether `later` holds everything that `earlier` holds."""
    return all(
        later.get(stream, {}).get(str(partition), {}).get(source, -1) >= sequence
        for stream, partition, source, sequence in entries(earlier)
    )


def ahead(later: Position, earlier: Position) -> bool:
    """Return whether `later` holds everything of `earlier` and more."""
    return covers(later, earlier) and not covers(earlier, later)
