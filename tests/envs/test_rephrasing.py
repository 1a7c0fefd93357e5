"""Generated tasks of retail and airline in other words: the same case, and every detail of it."""

from functools import lru_cache

import pytest

from daemon.proposer.candidate import Candidate, CandidateFacts
from daemon.proposer.verification import verify
from envs.airline.environment import Airline
from envs.environment import UnknownTask
from envs.retail.environment import Retail
from envs.tau2.environment import Tau2Environment
from envs.telecom.environment import Telecom
from events.canonical import sha256

ENVIRONMENTS: dict[str, Tau2Environment] = {
    "retail": Retail(),
    "airline": Airline(),
    "telecom": Telecom(),
}
KINDS = [
    (name, kind) for name, environment in ENVIRONMENTS.items() for kind in environment.capabilities
]
FIRST_WORDS = {
    "retail": "bca6a5a7ff25cd3cf1958b3bf47efe246cc0382179e92c4e0bd3711f26c08a86",
    "airline": "83968aa84b2d0f36c0488d26a76658497e83665e8ad1b8ac73e92dd3aedd48c5",
}
"""Digest of the tasks of seed 3, one of each kind."""


@lru_cache
def phrasings(name: str, kind: str) -> tuple[str, ...]:
    """The requests of one task in 40 phrasings."""
    environment = ENVIRONMENTS[name]
    task = environment.generate(kind, 7)
    others = [environment.rephrase(task, number) for number in range(40)]
    return tuple(other.scenario.reason_for_call for other in others if other is not None)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_other_words_change_nothing_but_the_words(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    task = environment.generate(kind, 7)
    for number in range(6):
        other = environment.rephrase(task, number)
        assert other is not None
        assert other.id == f"{name}/{kind}/7/{number}"
        assert environment.task(other.id) == other
        assert other.criteria == task.criteria
        assert environment.state_key(other) == environment.state_key(task)
        assert (other.seed, other.capability, other.split) == (task.seed, kind, task.split)
        assert other.scenario.reason_for_call != task.scenario.reason_for_call


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_kind_has_four_other_phrasings(name: str, kind: str) -> None:
    assert len(set(phrasings(name, kind))) >= 4


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_proposer_accepts_a_task_in_other_words(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    for seed in (2**24, 2**24 + 1):
        source = environment.generate(kind, seed)
        other = environment.rephrase(source, seed % 1000)
        assert other is not None
        verdict = verify(CandidateFacts(environment, Candidate(other, "inherit", source)))
        assert verdict.failed is None, f"{other.id}: {verdict.failed}: {verdict.reason}"
        assert len(verdict.passed) == 9


@pytest.mark.parametrize("name", FIRST_WORDS)
def test_a_task_without_a_phrasing_keeps_its_words(name: str) -> None:
    environment = ENVIRONMENTS[name]
    digests = (environment.generate(kind, 3).digest() for kind in environment.capabilities)
    assert sha256("".join(digests)) == FIRST_WORDS[name]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_other_words_of_other_words_are_of_the_same_case(name: str) -> None:
    environment = ENVIRONMENTS[name]
    task = environment.generate(next(iter(environment.capabilities)), 7)
    first = environment.rephrase(task, 1)
    assert first is not None
    assert environment.rephrase(first, 2) == environment.rephrase(task, 2)


def test_a_real_task_has_no_other_words() -> None:
    retail = ENVIRONMENTS["retail"]
    real = retail.generate("cancel", 7).model_copy(update={"id": "retail/7", "split": "test"})
    assert retail.rephrase(real, 1) is None


@pytest.mark.parametrize(
    "task_id",
    ["retail/cancel/7/", "retail/cancel/7/x", "retail/cancel/7/01", "retail/cancel/7/1/2",
     "retail/none/7/1", "retail/cancel/07/1"],
)  # fmt: skip
def test_no_other_id_gives_a_task(task_id: str) -> None:
    with pytest.raises(UnknownTask):
        ENVIRONMENTS["retail"].task(task_id)
