"""Rollouts are on disk before they are used, and damage to them is told."""

from dataclasses import replace
from pathlib import Path

import pytest

from daemon.solver.journal import BadJournal, Journal, JournalWriteError, rename
from tests.daemon.solver.forked import file_size_limit
from tests.daemon.solver.tiny import groups

SPEC = "a" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "rollouts.jsonl"


def test_what_was_appended_is_read_back_exactly(path: Path) -> None:
    batches = [tuple(groups(seed)) for seed in range(3)]
    # What the learner will refuse is kept too, to the last bit.
    strange = replace(
        batches[0][0].turns[0], logprobs=(float("-inf"), 0.1 + 0.2), completion_ids=(1, 2)
    )
    batches[2] = (replace(batches[2][0], turns=(strange,), success=None, reward=None),)
    journal = Journal(path, SPEC)
    for batch in batches:
        journal.append(batch)
    journal.close()
    again = Journal(path, SPEC)
    assert again.batches == batches
    again.close()


def test_a_journal_is_renamed_with_its_batches_and_twice_is_as_once(path: Path) -> None:
    other = "b" * 64
    rename(path, SPEC, other)
    assert not path.exists()
    journal = Journal(path, SPEC)
    journal.append(tuple(groups(0)))
    journal.close()
    with pytest.raises(BadJournal, match="another spec"):
        rename(path, "c" * 64, other)
    for _ in range(2):
        rename(path, SPEC, other)
        again = Journal(path, other)
        assert again.batches == journal.batches
        again.close()
    with pytest.raises(BadJournal, match="another spec"):
        Journal(path, SPEC)


def test_a_batch_that_was_half_written_is_no_batch(path: Path) -> None:
    journal = Journal(path, SPEC)
    journal.append(tuple(groups(0)))
    journal.close()
    whole = path.read_bytes()
    for cut in (1, 10, len(whole) // 3):
        path.write_bytes(whole + whole.splitlines()[1][:cut])
        again = Journal(path, SPEC)
        assert len(again.batches) == 1
        again.append(tuple(groups(1)))
        again.close()
        third = Journal(path, SPEC)
        assert third.batches == [tuple(groups(0)), tuple(groups(1))]
        third.close()


def test_a_journal_of_another_spec_is_refused(path: Path) -> None:
    Journal(path, SPEC).close()
    with pytest.raises(BadJournal, match="rollouts of another spec"):
        Journal(path, "b" * 64)


@pytest.mark.parametrize(
    ("line", "names"), [(0, "is no journal"), (1, "batch 0: .*damaged"), (2, "batch 1")]
)
def test_a_damaged_journal_is_refused_and_not_cut(path: Path, line: int, names: str) -> None:
    journal = Journal(path, SPEC)
    for seed in range(2):
        journal.append(tuple(groups(seed)))
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = b"?" + lines[line][1:]
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadJournal, match=names):
        Journal(path, SPEC)
    assert path.read_bytes() == b"".join(lines)


def test_a_full_disk_costs_the_batch_and_not_the_journal(path: Path) -> None:
    first, second, third = (tuple(groups(seed)) for seed in range(3))
    journal = Journal(path, SPEC)
    journal.append(first)
    before = path.read_bytes()
    with (
        file_size_limit(len(before) + 500),
        pytest.raises(JournalWriteError, match="File too large; see to the disk"),
    ):
        journal.append(second)
    assert path.read_bytes() == before
    journal.append(third)
    journal.close()
    again = Journal(path, SPEC)
    assert again.batches == [first, third]
    again.close()
