"""The golden corpus folds to one golden state, whatever version of the code reads it.

A hash that changes without a new FOLD_VERSION is a fold that makes something else of old events.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sqlalchemy import Engine

from consumers import database, reads
from consumers.tables import FOLD_VERSION
from events.log import Record
from tests.consumers.folding import Broker, fold, hash_of
from tests.replay.test_golden import golden_record
from tests.replay.write_golden import GOLDEN

STATE: Final = {3: "7b72c62c42758d6df726f0fa06e78b7c073dbe52d60bb146f0be85a2d2dfa450"}
"""Fold version -> hash of the state that the corpus of released versions folds to."""

FACTS: Final = (
    "RolloutEnded.v1",
    "CallStarted.v1",
    "CallEnded.v1",
    "FeedbackReceived.v1",
    "SessionEnded.v1",
)
DECISIONS: Final = ("TaskProposed.v1", "PatternsDiagnosed.v1")

PLACES: Final = ((0, "log-1", 4), (0, "log-2", 1), (7, "log-1", 10))
"""(partition, source, events): the position that the golden PatternsDiagnosed names. What stands
there beyond the first four are repetitions by other sources, which must change nothing."""


def corpus() -> Iterator[Record]:
    for partition, source, count in PLACES:
        for sequence in range(count):
            yield _placed(FACTS[sequence % len(FACTS)], partition, source, sequence)
    for sequence, name in enumerate(DECISIONS):
        yield _placed(name, 0, "log-1", sequence)


def _placed(name: str, partition: int, source: str, sequence: int) -> Record:
    record = golden_record(GOLDEN / f"{name}.bin")
    return replace(record, partition=partition, source=source, sequence=sequence)


def test_the_golden_corpus_folds_to_the_golden_state(engine: Engine) -> None:
    broker = Broker()
    broker.deliver(list(corpus()))
    runner = fold(broker, engine)
    with database.reading(engine) as connection:
        assert reads.dead_letters(connection) == []
        assert [line.rollout for line in reads.rollout_lines(connection)] == ["rollout-1"]
    assert runner.counters.folded == 17
    assert hash_of(engine) == STATE[FOLD_VERSION]
