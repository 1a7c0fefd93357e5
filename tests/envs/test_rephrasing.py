"""Generated tasks in other words: the same case, and every detail of it."""

import pytest

from daemon.proposer.candidate import Candidate, CandidateFacts
from daemon.proposer.verification import verify
from envs.environment import Environment, UnknownTask
from envs.episode import Episode, play
from envs.grading import grade
from envs.registry import open_environment
from events.canonical import sha256
from tests.envs.mini import Mini

ENVIRONMENTS: dict[str, Environment] = {
    name: open_environment(name) for name in ("shop", "retail", "airline", "telecom", "toolsandbox")
}
KINDS = [
    (name, kind) for name, environment in ENVIRONMENTS.items() for kind in environment.capabilities
]
VERIFIED = ("retail", "airline", "telecom")
FIRST_WORDS = {
    "retail": "bca6a5a7ff25cd3cf1958b3bf47efe246cc0382179e92c4e0bd3711f26c08a86",
    "airline": "83968aa84b2d0f36c0488d26a76658497e83665e8ad1b8ac73e92dd3aedd48c5",
}
"""Digest of the tasks of seed 3, one of each kind."""


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_other_words_change_nothing_but_the_words(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    task = environment.generate(kind, 7)
    made = [environment.rephrase(task, number) for number in range(40)]
    others = [other for other in made if other is not None]
    assert len(others) >= 10
    for other in others[:8]:
        assert environment.task(other.id) == other
        assert other.criteria == task.criteria
        assert environment.state_key(other) == environment.state_key(task)
        assert (other.seed, other.capability, other.split) == (task.seed, kind, task.split)
        episode = play(
            Episode(environment, other), environment.oracle(other), environment.user(other)
        )
        assert grade(environment, other, episode.messages, episode.termination).success
    assert len({other.script for other in others}) >= 3
    assert len({other.id for other in others}) == len(others)


@pytest.mark.parametrize(("name", "kind"), [one for one in KINDS if one[0] in VERIFIED])
def test_the_proposer_accepts_a_task_in_other_words(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    source = environment.generate(kind, 2**24)
    other = environment.rephrase(source, 216)
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


def test_phrases_that_ask_for_other_calls_are_not_other_words() -> None:
    shop = ENVIRONMENTS["shop"]
    task = shop.generate("two_writes", 7)
    assert None in [shop.rephrase(task, seed) for seed in range(20)]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_task_like_another_is_a_fresh_one_of_its_kind(name: str) -> None:
    environment = ENVIRONMENTS[name]
    for kind in environment.capabilities:
        task = environment.generate(kind, 7)
        assert environment.like(task, 8) == environment.generate(kind, 8)


def test_an_environment_without_other_words_says_so() -> None:
    mini = Mini()
    task = next(mini.tasks())
    assert mini.rephrase(task, 1) is None
    assert mini.like(task.model_copy(update={"split": "test"}), 5) is None


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
