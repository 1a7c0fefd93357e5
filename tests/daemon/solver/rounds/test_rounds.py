"""A job closes rounds over its own rollouts, and a kill in any phase changes no byte."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from daemon.proposer.proposer import TRIES
from daemon.proposer.verification import CHECKS, seed_of
from daemon.solver import journal
from daemon.solver.job import JOURNAL, Job, run
from daemon.solver.journal import rollout_id
from daemon.solver.rounds.reconstruction import UnreadableRollout, build_event
from daemon.solver.rounds.record import RoundRecord, read_record, record_path
from daemon.solver.rounds.rounds import Rounds
from daemon.solver.sampling.environments import JobEnvironments
from daemon.solver.sampling.local import Attempt, InProcess
from daemon.solver.sampling.sources import batch_of
from daemon.solver.spec import digest
from daemon.solver.telemetry.outcome import Outcome
from daemon.solver.telemetry.progress import Progress
from envs.registry import open_place
from events.jobs import EndpointUser, JobRounds, JobSpec
from events.learning import DirectiveWritten, PoolsShifted, TaskProposed, TaskRejected
from tests.daemon.solver.forked import ForkedJob, run_forked
from tests.daemon.solver.rounds import jobs
from tests.daemon.solver.sampling.test_local import ActingShop
from tests.envs.mini import Mini

pytestmark = pytest.mark.processes


def die_at_event(event: str, ending: str) -> None:
    """Make the process kill itself where Python is about to do something with a file."""

    def die(name: str, arguments: tuple[object, ...]) -> None:
        if name == event and str(arguments[0]).endswith(ending):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(die)


def written(record: RoundRecord) -> list[str]:
    """The tasks of a round that passed every check."""
    return [task.data.task.id for task in record.tasks if isinstance(task.data, TaskProposed)]


class Whole:
    """A job that nobody disturbed."""

    def __init__(self, out: Path) -> None:
        self.spec, self.out = jobs.spec(), out
        self.progress: list[Progress] = []
        self.outcome: Outcome = run(self.spec, out, self.progress.append)

    @property
    def record(self) -> RoundRecord:
        record = read_record(self.out, 1, digest(self.spec))
        assert record is not None
        return record


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def test_a_round_reads_its_part_and_writes_tasks_for_what_it_shows(whole: Whole) -> None:
    assert whole.outcome.outcome == "trained", whole.outcome.reason
    record = whole.record
    assert (record.rollouts, record.unread) == (32, 0), "two of four batches, all read back"
    patterns = [quota.pattern for quota in record.directive.quotas]
    assert jobs.WEAK in patterns
    names = {rollout_id(whole.spec.job, f"{whole.spec.job}/{batch}/{group}/{member}")
             for batch in range(2) for group in range(4) for member in range(4)}  # fmt: skip
    assert all(set(quota.examples) <= names for quota in record.directive.quotas)
    tasks = [task.data for task in record.tasks if isinstance(task.data, TaskProposed)]
    assert tasks
    assert len(record.tasks) <= TRIES * whole.spec.rounds.tasks  # type: ignore[union-attr]
    for data in tasks:
        assert [check.check for check in data.verified] == [
            c for c in CHECKS if c not in ("informative", "lesson")
        ]
        assert data.job_round is not None
        assert (data.cycle, data.job_round.job) == ("cycle-1", whole.spec.job)
        seed = seed_of(data.task.id)
        assert seed is not None
        assert seed in range(FIRST_SEED, LAST_SEED + 1) or data.mode == "inherit"


def test_the_pools_shift_and_written_tasks_are_drawn(whole: Whole) -> None:
    record = whole.record
    assert sum(pool.share for pool in record.pools) == pytest.approx(1)
    assert record.pools != whole.spec.pools
    new = set(written(record))
    assert new <= {task for pool in record.pools for task in pool.tasks}
    lines = (whole.out / JOURNAL).read_text().splitlines()[1:]
    drawn = [{item["task"] for item in json.loads(line)} for line in lines]
    assert not new & (drawn[0] | drawn[1])
    assert new & (drawn[2] | drawn[3])
    assert [bool(item.round_seconds) for item in whole.progress] == [False, False, True, False]


def test_the_events_of_a_round_follow_from_the_job_and_its_number(whole: Whole) -> None:
    first, second = (whole.record.decisions(whole.spec) for _ in range(2))
    assert first == second
    data = list(first.values())
    assert isinstance(data[0], DirectiveWritten)
    assert isinstance(data[-1], PoolsShifted)
    assert len(data) == 2 + len(whole.record.tasks)
    other = whole.spec.model_copy(update={"job": "00000000-0000-5000-8000-000000000002"})
    moved = whole.record.decisions(other)
    of_tasks = {task.event for task in whole.record.tasks}
    assert moved.keys() & first.keys() == of_tasks, "ids of tasks are in the record"


def test_a_job_that_was_left_after_a_round_goes_on_to_the_same_adapter(
    whole: Whole, tmp_path: Path
) -> None:
    with Job(whole.spec, tmp_path) as left:
        for progress in left:
            if progress.round_seconds:
                break
    assert run(whole.spec, tmp_path).sha256 == whole.outcome.sha256
    assert record_path(tmp_path, 1).read_bytes() == record_path(whole.out, 1).read_bytes()


def test_a_record_of_another_version_stops_the_job(whole: Whole, tmp_path: Path) -> None:
    path = record_path(tmp_path, 1)
    path.parent.mkdir()
    path.write_bytes(
        record_path(whole.out, 1).read_bytes().replace(b'"failures": ', b'"failures": 1')
    )
    (tmp_path / JOURNAL).write_bytes((whole.out / JOURNAL).read_bytes())
    outcome = run(whole.spec, tmp_path)
    assert outcome.outcome == "failed"
    assert "another record than this program makes" in str(outcome.reason)


def close_first(whole: Whole, settings: JobRounds, out: Path) -> RoundRecord:
    """Close the round of a job again, with other settings."""
    spec = whole.spec
    batches, _ = journal.read(whole.out / JOURNAL, digest(spec))
    environments, size = JobEnvironments(spec, open_place), spec.sampler.size
    rounds = Rounds(spec, settings, environments.own, Chat(CHECKPOINT), out, digest(spec))
    for number, batch in enumerate(batches[:2]):
        drawn = [(trajectory.task, spec.pools[0]) for trajectory in batch[::size]]
        assert not rounds.is_due(32), "a warm start showed 16 of these"
        rounds.add(batch_of(spec, environments, number, drawn).attempts, batch)
    assert not rounds.is_due(31)
    assert rounds.is_due(32)
    record = rounds.close_next()
    rounds.close()
    return record


def test_no_task_is_written_that_the_agent_has_already(whole: Whole, tmp_path: Path) -> None:
    rounds, first = whole.spec.rounds, written(whole.record)
    assert rounds is not None
    record = close_first(whole, rounds.model_copy(update={"known": tuple(first)}), tmp_path)
    assert record.failures == whole.record.failures
    assert first
    assert not set(first) & set(written(record))
    checks = {task.data.check for task in record.tasks if isinstance(task.data, TaskRejected)}
    assert "novelty" in checks


def test_rounds_of_a_job_for_a_skill_write_tasks_for_its_patterns_alone(
    whole: Whole, tmp_path: Path
) -> None:
    settings = whole.spec.rounds
    assert settings is not None
    patterns = [quota.pattern for quota in whole.record.directive.quotas]
    for number, aims in enumerate(((patterns[0],), ("wrong_entity|book_flight",))):
        out = tmp_path / str(number)
        out.mkdir()
        record = close_first(whole, settings.model_copy(update={"aims": aims}), out)
        assert record.failures == whole.record.failures
        stressed = {quota.pattern for quota in record.directive.quotas}
        assert stressed == {*aims} & {*patterns}
        assert {task.data.pattern for task in record.tasks} == stressed


@pytest.mark.parametrize(
    "change",
    [
        {"reward": "both"},
        {"user": EndpointUser(url="http://127.0.0.1:1/v1", model="customer")},
        {"environment": Mini()},
    ],
    ids=["reward", "user", "environment"],
)
def test_rollouts_of_pools_with_rules_of_their_own_are_read_by_no_round(
    whole: Whole, tmp_path: Path, change: dict[str, Any]
) -> None:
    spec, settings = whole.spec, whole.spec.rounds
    assert settings is not None
    batches, _ = journal.read(whole.out / JOURNAL, digest(spec))
    environments = JobEnvironments(spec, open_place)
    drawn = [(trajectory.task, spec.pools[0]) for trajectory in batches[0][:: spec.sampler.size]]
    attempts = batch_of(spec, environments, 0, drawn).attempts
    rounds = Rounds(spec, settings, environments.own, Chat(CHECKPOINT), tmp_path, digest(spec))
    rounds.add([replace(attempt, **change) for attempt in attempts], batches[0])
    assert not rounds.is_due(spec.sampler.rollouts), "there is nothing to read"
    rounds.add(attempts, batches[0])
    assert rounds.is_due(spec.sampler.rollouts)
    rounds.close()


def test_a_rollout_whose_tokens_make_another_episode_counts_in_no_round(whole: Whole) -> None:
    spec, chat = whole.spec, Chat(CHECKPOINT)
    environments = JobEnvironments(spec, open_place)
    environment = environments.own
    batches, _ = journal.read(whole.out / JOURNAL, digest(spec))
    batch = batches[0]
    drawn = [(trajectory.task, spec.pools[0]) for trajectory in batch[:: spec.sampler.size]]
    attempts = batch_of(spec, environments, 0, drawn).attempts
    failed = next(n for n, item in enumerate(batch) if not item.success)
    rollout, attempt = batch[failed], attempts[failed]
    event = build_event(spec, environment, chat, attempt, rollout)
    assert (event.success, event.reward) == (False, rollout.reward)
    without_tokens = replace(rollout.turns[0], completion_ids=())
    others = (
        (replace(rollout, success=True), "make another episode"),
        (replace(rollout, turns=(*rollout.turns, *rollout.turns)), "make another episode"),
        (replace(rollout, turns=(without_tokens,)), "without tokens"),
        (replace(rollout, success=None), "nobody judged"),
    )
    for other, sentence in others:
        with pytest.raises(UnreadableRollout, match=sentence):
            build_event(spec, environment, chat, attempt, other)


def test_a_rollout_whose_user_acts_is_read_back_with_what_the_user_did() -> None:
    environment, policy = ActingShop(), Policy.load(CHECKPOINT, "reference")
    attempts = [Attempt(environment.generate("cancel", n), "0/0", n, f"0/0/{n}") for n in range(4)]
    player = InProcess(Engine(policy, 4, 512), Chat(CHECKPOINT), max_tokens=64)
    for rollout in player.play(environment, attempts, policy):
        event = build_event(
            jobs.spec(), environment, player.chat, rollout.attempt, rollout.trajectory
        )
        assert event.content is not None
        assert event.content.messages == tuple(rollout.episode.messages)
        assert event.success == rollout.grade.success


@pytest.mark.parametrize(
    ("event", "ending"),
    [
        ("open", "rounds/tmp-1.json"),
        pytest.param("os.rename", "rounds/tmp-1.json", marks=pytest.mark.long),
        pytest.param("os.rename", "tmp-adapter", marks=pytest.mark.long),
    ],
)
def test_a_kill_while_something_is_stored_changes_no_byte(
    whole: Whole, tmp_path: Path, event: str, ending: str
) -> None:
    path = tmp_path / "job.json"
    path.write_text(whole.spec.model_dump_json())
    arguments = [str(path), "--out", str(tmp_path / "out")]
    dying = run_forked(arguments, before=partial(die_at_event, event, ending))
    assert dying.code == -signal.SIGKILL, dying.complaint
    _same_adapter(whole, tmp_path / "out")


@pytest.mark.long
@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("phase", ["update", "rollouts"])
def test_a_kill_between_two_batches_changes_no_byte(
    whole: Whole, tmp_path: Path, batches: int, phase: str
) -> None:
    path = tmp_path / "job.json"
    path.write_text(whole.spec.model_dump_json())
    out = tmp_path / "out"
    with ForkedJob([str(path), "--out", str(out)]) as running:
        for _ in _until_played(out / JOURNAL, batches):
            assert running.poll() is None
        if phase == "rollouts":
            updates = 0
            while updates < batches:
                updates += "metrics" in running.stdout.readline()
        assert running.kill() == -signal.SIGKILL
    _same_adapter(whole, out)


def _until_played(path: Path, batches: int) -> Iterator[None]:
    while not path.exists() or path.read_bytes().count(b"\n") <= batches:
        time.sleep(0.01)
        yield


def _same_adapter(whole: Whole, out: Path) -> None:
    """The job goes on, and leaves what an undisturbed one leaves."""
    assert not (out / "adapter").exists()
    outcome = run(whole.spec, out)
    assert outcome.sha256 == whole.outcome.sha256
    assert record_path(out, 1).read_bytes() == record_path(whole.out, 1).read_bytes()


def test_a_spec_without_rounds_is_as_it_was() -> None:
    spec = jobs.spec(rounds=None)
    assert "rounds" not in spec.model_dump(mode="json")
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sampler": {"groups": 4, "size": 4, "rollouts": 31}}, "less than one batch"),
        ({"grpo": False, "warm_start": {"mode": "always"}}, "references|GRPO"),
    ],
)
def test_rounds_that_have_no_batches_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        jobs.spec(**changes)
