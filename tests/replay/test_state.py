"""The golden corpus folds to one golden state, whatever version of the code reads it.

A hash that changes without a new FOLD_VERSION is a fold that makes something else of old events.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sqlalchemy import Engine, select

from consumers import database
from consumers.reads import learning, rollouts
from consumers.tables import FOLD_VERSION, LifecycleStep
from events.log import Record
from tests.consumers.folding import Broker, fold, hash_of
from tests.replay.test_golden import golden_record
from tests.replay.write_golden import GOLDEN

STATE: Final = {18: "5e44ce73640290034a9126eef40b64e471369622e3dab8b1faca5e6d27e8b8cf"}
"""Fold version -> hash of the state that the corpus of released versions folds to."""

FACTS: Final = (
    "RolloutEnded.v1",
    "CallStarted.v1",
    "CallEnded.v1",
    "FeedbackReceived.v1",
    "SessionEnded.v1",
    "CallsGathered.v1",
    "ClosingFailed.v1",
)
EPOCHS: Final = (1, 2, 3)
"""Led before: the golden LeaderClaimed, and every golden decision, is of the one after them."""
DECISIONS: Final = (
    "LeaderClaimed.v1",
    "CycleStarted.v1",
    "PatternsDiagnosed.v1.2",
    "DirectiveWritten.v1.4",
    "TaskProposed.v1.3",
    "TaskRejected.v1.2",
    "JobRequested.v1",
    "JobEnded.v1",
    "AdapterProduced.v1.2",
    "PanelComposed.v1",
    "AdapterStaged.v1",
    "AdapterEvaluated.v1",
    "GateDecided.v1.5",
    "OperatorActed.v1",
    "RouteChanged.v1",
    "AdapterMoved.v1",
    "CycleEnded.v1",
    "PersonErased.v1",
    "RepairSearched.v1",
    "TaskProposed.v1",
    "TaskRejected.v1",
    "TaskRetired.v1",
    "SkillsContrasted.v1.1",
    "SkillsContrasted.v1",
    "PatternsDiagnosed.v1.1",
    "TaskProposed.v1.1",
    "GateDecided.v1.1",
    "PlansWritten.v1",
    "PlansRevised.v1",
    "TrajectoryVerified.v1",
    "UserEvaluated.v1.1",
)
"""Three are redone in their first form, which must change nothing."""
OTHERS: Final = (
    ("AdapterProduced.v1.1", "adapter-3"),
    ("AdapterStaged.v1", "adapter-3"),
    ("AdapterProduced.v1", "user-1-0f3c9a1e"),
)
"""What came before for the adapter that `RouteChanged` names as its shadow, and for the one that
`UserEvaluated` names: golden events of the other adapter under their names."""

PLACES: Final = ((0, "log-1", 4), (0, "log-2", 1), (7, "log-1", 10))
"""(partition, source, events): the position that the golden PatternsDiagnosed names. What stands
there beyond the first four are repetitions by other sources, which must change nothing."""


def corpus() -> Iterator[Record]:
    for partition, source, count in PLACES:
        for sequence in range(count):
            yield _placed(FACTS[sequence % len(FACTS)], partition, source, sequence)
    for sequence, epoch in enumerate(EPOCHS):
        claim = _placed("LeaderClaimed.v1", 0, "log-00", sequence)
        yield replace(claim, value=claim.value.replace(b'"epoch":4', b'"epoch":%d' % epoch))
    yield _placed(DECISIONS[0], 0, "log-1", 0)
    for sequence, (name, adapter) in enumerate(OTHERS):
        yield _rename(_placed(name, 0, "log-0", sequence), adapter)
    for sequence, name in enumerate(DECISIONS[1:], start=1):
        yield _placed(name, 0, "log-1", sequence)


def _placed(name: str, partition: int, source: str, sequence: int) -> Record:
    record = golden_record(GOLDEN / f"{name}.bin")
    return replace(record, partition=partition, source=source, sequence=sequence)


def _rename(record: Record, adapter: str) -> Record:
    value = record.value.replace(b"cancel-40-0f3c9a1e", adapter.encode())
    headers = tuple(
        (name, adapter.encode() + text if name == "ce_id" else text)
        for name, text in record.headers
    )
    return replace(record, value=value, headers=headers)


def test_the_golden_corpus_folds_to_the_golden_state(engine: Engine) -> None:
    broker = Broker()
    broker.deliver(list(corpus()))
    runner = fold(broker, engine)
    with database.read_transaction(engine) as connection:
        assert rollouts.dead_letters(connection) == []
        assert [line.rollout for line in rollouts.rollout_lines(connection)] == ["rollout-1"]
        steps = connection.execute(select(LifecycleStep.table()))
        assert {step.refused for step in steps} == {None}
        leader, (cycle,) = learning.leader(connection), learning.cycles(connection)
        (task,) = learning.tasks_of(connection, cycle.alias, cycle.base)
        job = learning.job(connection, cycle.job or "")
    assert leader is not None
    assert leader.epoch == len(EPOCHS) + 1
    assert (cycle.round, cycle.accepted, cycle.rejected, cycle.outcome) == (0, 1, 1, "promoted")
    assert task.cycle == cycle.cycle
    assert job is not None
    assert job.outcome == "trained"
    assert runner.counters.folded == 52
    assert hash_of(engine) == STATE[FOLD_VERSION]
