"""`python -m ops.fuzz.specs --specs 100000 --jobs 200` at small counts."""

import json
from itertools import islice
from pathlib import Path

import pytest

from ops.fuzz.specs import READ, TRAINED, build_specs, check_spec, check_specs, run_jobs


def test_every_mutant_of_a_spec_is_accepted_or_refused() -> None:
    results, wrong, _ = check_specs(seed=1, count=1_500)
    assert wrong == []
    assert results["accepted"] > 100
    assert results["BadSpec"] > 500


def test_mutants_follow_from_the_seed() -> None:
    first, again, other = (list(islice(build_specs(n, READ), 50)) for n in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("place", range(len(READ)))
def test_what_is_mutated_is_valid(place: int) -> None:
    assert check_spec(json.dumps(READ[place]).encode()) == "accepted"
    assert READ[: len(TRAINED)] == TRAINED


@pytest.mark.learning
@pytest.mark.processes
def test_every_accepted_mutant_is_a_job_with_an_outcome(tmp_path: Path) -> None:
    results, wrong = run_jobs(seed=1, count=8, folder=tmp_path)
    assert wrong == []
    assert results.total() >= 8
    assert results["trained"] > 0
