"""The runner: nothing counts twice, nothing is lost, and it stops where it must."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text

from consumers import database
from consumers.digest import row_counts
from consumers.position import gaps, offsets
from consumers.reads import rollouts as reads
from consumers.runner import PositionGap, Runner
from consumers.tables import Call, DeadLetter, Feedback, Rollout
from events.blobs import BlobStore
from events.codec import encode
from events.envelope import Envelope
from events.errors import AheadOfLog, BlobError, LogTruncated, SchemaAhead
from events.log import Entry, Record
from events.memory import MemoryLog
from events.messages import Message
from events.registry import REGISTRY, Registry
from events.rollouts import (
    CallEnded,
    CallStarted,
    EventData,
    FeedbackReceived,
    RolloutContent,
    RolloutEnded,
)
from events.streams import LEARNING, ROLLOUTS, STREAMS
from ops.mix import mix
from tests.consumers.folding import (
    Broker,
    close_round,
    diagnosed,
    ended,
    entry,
    fold,
    folded_position,
    fresh,
    hash_of,
    log_of,
    rollout,
)


def all_records(log: MemoryLog) -> list[Record]:
    return [
        record
        for stream in STREAMS.values()
        for partition in range(stream.partitions)
        for record in log.read(stream.name, partition, 0, limit=100_000)
    ]


def with_header(made: Entry, name: str, value: bytes) -> Entry:
    return replace(made, headers=tuple((n, value if n == name else v) for n, v in made.headers))


def test_every_event_of_the_mix_becomes_its_row(engine: Engine) -> None:
    runner = fold(log_of(list(mix(200))), engine)
    with database.read_transaction(engine) as connection:
        counts = row_counts(connection)
        calls = connection.execute(select(Call.table())).all()
    assert (counts["rollouts"], counts["calls"], counts["feedback"]) == (30, 80, 10)
    assert counts["dead_letters"] == 0
    assert runner.counters.folded == 200
    assert all(call.started and call.ended and call.outcome and call.alias for call in calls)


def test_catching_up_to_a_goal_stops_there_however_long_the_log_is(engine: Engine) -> None:
    log = log_of(list(mix(200)))
    ends = log.end(ROLLOUTS.name)
    goal = {(ROLLOUTS.name, partition): end // 2 for partition, end in enumerate(ends)}
    fold(log, engine, until=goal)
    with database.read_transaction(engine) as connection:
        reached = offsets(connection)
    assert {place: reached.get(place, 0) for place in goal} == goal


def test_folding_again_from_a_new_runner_changes_nothing(engine: Engine) -> None:
    log = log_of(list(mix(300)))
    fold(log, engine)
    before = hash_of(engine)
    assert fold(log, engine).counters.folded == 0
    assert hash_of(engine) == before


def test_a_repeated_window_of_the_topic_changes_nothing(engine: Engine, tmp_path: Path) -> None:
    spool = log_of(list(mix(400)))
    records = all_records(spool)
    straight = fresh(tmp_path, "straight")
    fold(spool, straight)
    broker = Broker()
    chance = random.Random(7)
    for _ in range(8):
        first = chance.randrange(len(records))
        broker.deliver(records[: first + 60])
    broker.deliver(records)
    runner = fold(broker, engine)
    assert runner.counters.duplicates > 400
    assert hash_of(engine) == hash_of(straight)


def test_what_comes_before_its_turn_is_left_for_the_shipper(engine: Engine, tmp_path: Path) -> None:
    spool = log_of(list(mix(400)))
    records = all_records(spool)
    straight = fresh(tmp_path, "straight")
    fold(spool, straight)
    broker = Broker()
    window = records[:50]
    random.Random(3).shuffle(window)
    broker.deliver(window)
    runner = fold(broker, engine)
    assert runner.counters.gaps > 0
    with database.read_transaction(engine) as connection:
        assert any(f"of source {spool.source}" in gap for gap in gaps(connection))
    broker.deliver(records)  # go-back-N: the shipper sends everything again from its cursor
    fold(broker, engine)
    with database.read_transaction(engine) as connection:
        assert gaps(connection) == []
    assert hash_of(engine) == hash_of(straight)


@pytest.mark.parametrize("seed", range(2))
def test_batch_splits_and_the_order_of_partitions_do_not_matter(
    engine: Engine, tmp_path: Path, seed: int
) -> None:
    log = log_of(list(mix(300)))
    straight = fresh(tmp_path, "straight")
    close_round(log, straight)
    chance = random.Random(seed)
    runner = Runner(log, engine)
    open_partitions = [(s.name, p) for s in STREAMS.values() for p in range(s.partitions)]
    while open_partitions:
        at = chance.choice(open_partitions)
        if runner.step(*at, limit=chance.randrange(1, 40)) == 0:
            open_partitions.remove(at)
    runner.catch_up()
    assert hash_of(engine) == hash_of(straight)


def test_two_runners_on_the_same_partitions_fold_each_event_once(
    engine: Engine, tmp_path: Path
) -> None:
    log = log_of(list(mix(400)))
    straight = fresh(tmp_path, "straight")
    fold(log, straight)
    one, two = Runner(log, engine, batch_events=7), Runner(log, engine, batch_events=11)
    one.catch_up({(ROLLOUTS.name, p): 5 for p in range(ROLLOUTS.partitions)})
    two.catch_up({(ROLLOUTS.name, p): 30 for p in range(ROLLOUTS.partitions)})
    one.catch_up()  # its idea of every offset is stale now
    assert one.counters.fenced > 0
    assert hash_of(engine) == hash_of(straight)


def test_poison_becomes_a_dead_letter_and_its_neighbours_are_folded(engine: Engine) -> None:
    good = [ended(f"r{n}", session="one") for n in range(6)]
    cut = replace(good[1], value=good[1].value[:-9])
    other_type = entry(CallStarted(call="c", session="one", alias="a", base="b", policy="p"), "c")
    no_json = with_header(other_type, "ce_type", b"RolloutEnded")
    no_type = replace(good[2], headers=tuple(h for h in good[2].headers if h[0] != "ce_type"))
    log = log_of([good[0], cut, good[3], no_json, no_type, good[4], good[5]])
    runner = fold(log, engine)
    with database.read_transaction(engine) as connection:
        letters = reads.dead_letters(connection)
        rollouts = {row.rollout for row in connection.execute(select(Rollout.table()))}
    assert rollouts == {"r0", "r3", "r4", "r5"}
    assert sum(runner.counters.dead_letters.values()) == 3
    assert [letter.offset for letter in letters] == [1, 3, 4]
    assert "bytes, its frame announces" in letters[0].reason
    assert letters[1].type == "RolloutEnded"
    assert "ce_type is missing" in letters[2].reason


def test_a_value_of_ten_megabytes_is_a_dead_letter(engine: Engine) -> None:
    made = ended("r")
    huge = replace(made, value=b"x" * 10_485_760)
    broker = Broker()
    spool = log_of([made])
    record = spool.read(made.stream, made.partition, 0)[0]
    copies = broker._records[made.stream, made.partition]
    copies.append(replace(record, value=huge.value))
    fold(broker, engine)
    with database.read_transaction(engine) as connection:
        (letter,) = reads.dead_letters(connection)
    assert "10,485,760" in letter.reason


def test_an_unknown_type_is_skipped_and_the_partition_goes_on(engine: Engine) -> None:
    foreign = with_header(ended("x", session="s"), "ce_type", b"SomethingElse")
    runner = fold(log_of([foreign, ended("r", session="s")]), engine)
    with database.read_transaction(engine) as connection:
        assert [line.rollout for line in reads.rollout_lines(connection)] == ["r"]
        assert reads.dead_letters(connection) == []
    assert runner.counters.skipped == 1


def test_a_version_from_the_future_halts_until_the_upgrade(engine: Engine) -> None:
    ahead = with_header(ended("new", session="s"), "ce_dataversion", b"2")
    log = log_of([ended("old", session="s"), ahead, ended("after", session="s")])
    for _ in range(2):
        with pytest.raises(SchemaAhead, match="upgrade this process"):
            fold(log, engine)
        with database.read_transaction(engine) as connection:
            assert [line.rollout for line in reads.rollout_lines(connection)] == ["old"]
            assert reads.dead_letters(connection) == []

    class Newer(RolloutEnded):
        VERSION = 2

    types: dict[str, type[EventData]] = {**REGISTRY.types, "RolloutEnded": Newer}
    upgraded = Registry(types, {("RolloutEnded", 1): lambda data: data})
    Runner(log, engine, registry=upgraded).catch_up()
    with database.read_transaction(engine) as connection:
        folded = {line.rollout for line in reads.rollout_lines(connection)}
        assert folded == {"old", "new", "after"}
        assert reads.dead_letters(connection) == []


def test_the_first_of_two_events_with_one_id_stands(engine: Engine) -> None:
    twice = [ended("r", session="s", reward=0.25), ended("r", session="s", reward=0.75)]
    feedback = entry(FeedbackReceived(session="s", score=1.0), "same")
    other = entry(FeedbackReceived(session="s", score=0.0), "same")
    started = entry(CallStarted(call="c", session="s", alias="a", base="b", policy="p"), "start")
    ends = [
        entry(CallEnded(call="c", session="s", outcome="completed"), "end"),
        entry(CallEnded(call="c", session="s", outcome="failed"), "again"),
    ]
    fold(log_of([*twice, feedback, other, started, *ends]), engine)
    with database.read_transaction(engine) as connection:
        assert [line.reward for line in reads.rollout_lines(connection)] == [0.25]
        assert connection.execute(select(Feedback.table().c.score)).scalars().all() == [1.0]
        assert connection.execute(select(Call.table().c.outcome)).scalars().all() == ["completed"]


def test_a_call_whose_end_is_folded_first_is_the_same_call(engine: Engine, tmp_path: Path) -> None:
    start = entry(CallStarted(call="c", session="s", alias="a", base="b", policy="p"), "start")
    end = entry(CallEnded(call="c", session="s", outcome="completed"), "end")
    other = fresh(tmp_path, "other")
    fold(log_of([start, end]), engine)
    fold(log_of([end, start]), other)
    assert hash_of(engine) == hash_of(other)


def test_a_log_whose_start_was_trimmed_halts_the_fold(engine: Engine) -> None:
    log = log_of([ended(f"r{n}", session="s") for n in range(10)])
    partition = ROLLOUTS.partition_of("s")
    log.trim(ROLLOUTS.name, partition, 4)
    with pytest.raises(LogTruncated, match="starts at offset 4, offset 0 was asked for"):
        fold(log, engine)
    with database.read_transaction(engine) as connection:
        assert reads.rollout_lines(connection) == []


def test_a_wiped_log_halts_the_fold_and_overwrites_nothing(engine: Engine) -> None:
    fold(log_of([ended(f"r{n}", session="s") for n in range(10)]), engine)
    before = hash_of(engine)
    wiped = log_of([ended("other", session="s")])
    with pytest.raises(AheadOfLog, match="wiped"):
        Runner(wiped, engine).step(ROLLOUTS.name, ROLLOUTS.partition_of("s"))
    assert hash_of(engine) == before


def test_a_log_that_is_shorter_than_the_position_halts_catching_up(engine: Engine) -> None:
    fold(log_of([ended(f"r{n}", session="s") for n in range(10)]), engine)
    with pytest.raises(AheadOfLog):
        fold(MemoryLog(), engine)


def test_a_round_waits_for_the_rollouts_that_it_names(engine: Engine) -> None:
    log = log_of([ended("r", session="s")])
    partition = str(ROLLOUTS.partition_of("s"))
    log.append([diagnosed({ROLLOUTS.name: {partition: {"another spool": 3}}})])
    with pytest.raises(PositionGap, match="ship the spools"):
        fold(log, engine)
    with database.read_transaction(engine) as connection:
        assert reads.last_round(connection) is None
        assert reads.dead_letters(connection) == []


def test_a_round_is_folded_after_its_rollouts_whichever_partition_comes_first(
    engine: Engine,
) -> None:
    log = log_of([ended(f"r{n}") for n in range(20)])
    positions = {
        str(p): {log.source: end - 1} for p, end in enumerate(log.end(ROLLOUTS.name)) if end
    }
    log.append([diagnosed({ROLLOUTS.name: positions})])
    Runner(log, engine).step(LEARNING.name, 0)
    with database.read_transaction(engine) as connection:
        last = reads.last_round(connection)
    assert last is not None
    assert last.rollouts == 20


@pytest.mark.parametrize(
    "position",
    [b'{"rollouts": {"zero": {"s": 1}}}', b'{"rollouts": {"0": {"s": -1}}}',
     b'{"rollouts": {"0": {"s": 9223372036854775808}}}'],
)  # fmt: skip
def test_a_round_with_a_malformed_position_is_a_dead_letter(
    engine: Engine, position: bytes
) -> None:
    log = log_of([ended("r")])
    fold(log, engine)
    good = diagnosed(folded_position(engine))
    value = b'{"trigger": "diagnose", "position": ' + position + b"}"
    log.append([replace(good, value=value), good])
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        (letter,) = reads.dead_letters(connection)
        last = reads.last_round(connection)
    assert (letter.stream, letter.type) == (LEARNING.name, "PatternsDiagnosed")
    assert "position" in letter.reason
    assert last is not None


def test_a_decision_that_breaks_in_the_middle_leaves_nothing_behind(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The invariant is broken from outside, for no stored event is known to break a round late."""
    log = log_of([ended("r")])
    fold(log, engine)
    log.append([diagnosed(folded_position(engine))])

    def broken(*_arguments: object) -> None:
        raise ValueError("counted wrongly")

    monkeypatch.setattr("consumers.diagnosis.round_counts.totals", broken)
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        (letter,) = reads.dead_letters(connection)
        assert letter.reason == "ValueError: counted wrongly"
        assert reads.count_backlog(connection).undiagnosed == 1  # the claim was taken back
        assert reads.last_round(connection) is None


def test_tables_of_another_fold_version_are_refused(engine: Engine) -> None:
    fold(log_of([ended("r")]), engine)
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE projection SET fold_version = 0"))
    with pytest.raises(Exception, match="run kintsugi rebuild"):
        fold(log_of([ended("r")]), engine)


def test_recorded_times_do_not_reach_the_tables(engine: Engine, tmp_path: Path) -> None:
    made = list(mix(120))
    chance = random.Random(1)
    shifted = [
        replace(one, recorded_ms=one.recorded_ms + chance.choice((-3_600_000, 0, 3_600_000)))
        for one in made
    ]
    other = fresh(tmp_path, "other")
    fold(log_of(made), engine)
    fold(log_of(shifted), other)
    assert hash_of(engine) == hash_of(other)


def test_text_with_nul_is_stored_alike_on_both_databases(engine: Engine, tmp_path: Path) -> None:
    log = log_of([ended("r", termination="a\x00b")])
    other = fresh(tmp_path, "other")
    fold(log, engine)
    fold(log, other)
    assert hash_of(engine) == hash_of(other)
    with database.read_transaction(engine) as connection:
        row = reads.rollout_row(connection, "r")
    assert row is not None
    assert row.termination == "a�b"


def test_a_dead_letter_names_the_event_by_source_and_sequence(engine: Engine) -> None:
    made = ended("r", session="s")
    log = log_of([replace(made, value=b"kg")])
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        letter = connection.execute(select(DeadLetter.table())).one()
    assert (letter.event_source, letter.sequence) == (log.source, 0)
    assert folded_position(engine)[ROLLOUTS.name][str(made.partition)] == {log.source: 0}


def test_a_missing_or_damaged_blob_changes_no_projection(engine: Engine, tmp_path: Path) -> None:
    data = rollout(
        "large",
        content=RolloutContent(
            messages=(Message(role="user", content=random.Random(5).randbytes(900_000).hex()),)
        ),
    )
    envelope = Envelope(id="large", type=data.TYPE, version=data.VERSION, subject=data.key())
    encoded = encode(envelope, data, recorded_ms=1)
    assert encoded.blob is not None
    assert encoded.reference is not None
    log = log_of([encoded.entry, ended("small")])
    fold(log, engine)  # no blob was ever stored
    with database.read_transaction(engine) as connection:
        lines = {line.rollout: line for line in reads.rollout_lines(connection)}
        assert reads.dead_letters(connection) == []
    assert lines.keys() == {"large", "small"}
    assert lines["large"].success is False
    store = BlobStore(tmp_path / "blobs")
    with pytest.raises(BlobError, match=encoded.reference.sha256):
        store.get(encoded.reference.sha256)
    store.put(encoded.blob)
    path = tmp_path / "blobs" / encoded.reference.sha256[:2] / encoded.reference.sha256
    path.write_bytes(encoded.blob[:-1] + b"?")
    with pytest.raises(BlobError, match="holds other bytes"):
        store.get(encoded.reference.sha256)
