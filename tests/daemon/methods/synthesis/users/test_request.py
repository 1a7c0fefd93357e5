"""The leader requests the job of an agent's users: once, of no cycle, and again only with more."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from consumers.reads import learning
from consumers.reads.learning import JobRow
from daemon.config.settings import Agent, Improve, Scheduler, Training
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader, TickResult
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.user_training.dialogue_file import DIALOGUES, write_dialogues
from daemon.methods.synthesis.user_training.dialogue_file import read_dialogues as read_file
from daemon.methods.synthesis.users.dialogues import read_dialogues
from daemon.methods.synthesis.users.spec import NoUserJob, build_user_spec
from daemon.methods.synthesis.users.state_machine import LEAST_DIALOGUES
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from daemon.proposer.verification import seed_of
from daemon.solver.kinds import check_supported
from events.envelope import derive_id
from events.jobs import JobSpec, LoraSettings, TaskPool
from events.learning import JobEnded, JobRequested
from tests.consumers.folding import at, ended
from tests.consumers.playing_users import user_evaluated, user_produced
from tests.daemon.methods.synthesis.users.conftest import MakeApp, decide, play
from tests.daemon.written import Fixed

NEVER: Final = Scheduler(min_rollouts=10**6, min_priority=1e9, max_age_seconds=1e9)


@pytest.fixture
def make(make_app: MakeApp) -> Callable[..., App]:
    """Make a home in which no cycle is due, with so many accepted dialogues."""

    def make(count: int, users: str = "trained", **fields: object) -> App:
        app = make_app(users, **{"scheduler": NEVER, **fields})
        play(app, *(f"shop/return/{seed}" for seed in range(count)))
        return app

    return make


def tick(app: App) -> TickResult:
    """One look of another leader."""
    leadership = Leadership(app)
    try:
        return Leader(app, Fixed(), leadership).tick()
    finally:
        leadership.resign()


def jobs(app: App) -> list[JobRow]:
    with app.reading() as connection:
        return learning.jobs(connection)


def end(app: App, job: str, outcome: str = "failed", reason: str = "it broke") -> None:
    data = JobEnded.model_validate({"job": job, "outcome": outcome, "reason": reason})
    Decisions(app).take(data, "over", job)


def test_a_job_is_requested_once_whoever_leads(make: Callable[..., App]) -> None:
    app = make(LEAST_DIALOGUES)
    result = tick(app)
    assert result.told == ["a job that trains who plays the users of agent was requested"]
    assert (result.troubles, result.failed) == ([], [])
    assert tick(app).told == []
    (job,) = jobs(app)
    assert job.job == derive_id("user job", "agent", "base", "1")
    assert (job.cycle, job.teaches, job.outcome) == (None, "user", None)
    with app.reading() as connection:
        assert learning.cycles(connection) == []


def test_its_spec_is_one_that_the_learner_takes_and_its_file_follows_from_the_log(
    make: Callable[..., App], tmp_path_factory: pytest.TempPathFactory
) -> None:
    app = make(LEAST_DIALOGUES)
    tick(app)
    (job,) = jobs(app)
    spec = job.spec
    check_supported(spec)
    (pool,) = spec.pools
    assert len(pool.successes) == LEAST_DIALOGUES
    assert len(pool.references) == 8192 - LEAST_DIALOGUES
    assert len(pool.tasks) == 64
    assert (spec.lora.rank, spec.lora.alpha, spec.lora.targets[-1]) == (32, 64.0, "lm_head")
    seeds = [seed_of(task) or 0 for task in pool.all_tasks]
    assert min(seeds) >= FIRST_SEED
    assert max(seeds) < 1 << 32
    folder = tmp_path_factory.mktemp("job")
    with app.reading() as connection:
        dialogues = read_dialogues(app, connection, pool.successes)
    (folder / DIALOGUES).write_bytes(write_dialogues(dialogues))
    dialogues = read_file(folder, spec)
    assert [item.rollout for item in dialogues] == sorted(pool.successes)


@pytest.mark.long
def test_where_plans_write_tasks_the_second_job_trains_on_in_all_manners(
    make: Callable[..., App],
) -> None:
    """The first one learns the words of the generator, and its gate has no other."""
    app = make(LEAST_DIALOGUES, synthesis="auto")
    tick(app)
    (first,) = jobs(app)
    assert (first.spec.manners, first.spec.parent) == ((), None)
    decide(app, user_produced("u", job=first.job), user_evaluated("u"))
    end(app, first.job, "trained")
    tick(app)
    (second,) = [job for job in jobs(app) if job.job != first.job]
    check_supported(second.spec)
    assert (second.spec.manners, second.spec.parent) == (tuple(MANNERS), "/adapters/u")
    assert [len(spec.pools[0].references) for spec in (first.spec, second.spec)] == [
        8192 - LEAST_DIALOGUES, 16_384 - LEAST_DIALOGUES,
    ]  # fmt: skip
    assert first.spec.warm_start is not None
    assert first.spec.warm_start.sft.optimizer.lr == pytest.approx(3e-3)
    assert second.spec.warm_start is not None
    assert second.spec.warm_start.sft.optimizer.lr == pytest.approx(2e-3)
    decide(app, user_produced("v", job=second.job))
    decide(app, user_evaluated("v", passed=False, previous="u"))
    end(app, second.job, "trained")
    assert tick(app).told == [], "a failed gate waits for more dialogues"


def test_a_job_for_other_weights_trains_on_from_none(make: Callable[..., App]) -> None:
    app = make(LEAST_DIALOGUES, synthesis="auto")
    decide(app, user_produced("u"), user_evaluated("u"))
    tick(app)
    (job,) = jobs(app)
    assert (job.spec.manners, job.spec.parent) == (tuple(MANNERS), None)


def test_of_a_quantised_base_what_follows_from_its_size_is_to_be_set(
    make: Callable[..., App], tmp_path: Path
) -> None:
    save_file({"layer.qweight": torch.zeros(2, dtype=torch.int32)}, tmp_path / "model.safetensors")
    agent = Agent(alias="agent", environment="shop", checkpoint=tmp_path)
    app = make(LEAST_DIALOGUES, agents=(agent,))
    with pytest.raises(NoUserJob, match=r"warm_start_epochs and improve\.users_dialogues"):
        build_user_spec(app, agent, "job", "base", [])
    improve = Improve(users="trained", users_dialogues=7)
    training = Training(warm_start_lr=1e-4, warm_start_epochs=2)
    app = make(0, agents=(agent,), improve=improve, training=training)
    spec = build_user_spec(app, agent, "job", "base", [])
    assert len(spec.pools[0].references) == 7
    assert spec.lora == LoraSettings(rank=16, alpha=32)


def test_what_a_failed_attempt_had_does_not_follow_from_clocks(make: Callable[..., App]) -> None:
    """All dialogues here have times before the request, as where a clock is set back."""
    app = make(LEAST_DIALOGUES + 1)
    tick(app)
    (job,) = jobs(app)
    assert job.spec.dialogue_count == LEAST_DIALOGUES + 1
    end(app, job.job)
    play(app, *(f"shop/return/{1000 + number}" for number in range(LEAST_DIALOGUES)))
    assert tick(app).told == []
    play(app, "shop/return/2000")
    assert len(tick(app).told) == 1, "there are twice as many"


@pytest.mark.parametrize("count", [0, LEAST_DIALOGUES - 1])
def test_with_too_few_dialogues_none_is_requested(make: Callable[..., App], count: int) -> None:
    app = make(count)
    assert tick(app).told == []
    assert jobs(app) == []


@pytest.mark.parametrize("users", ["script", "model"])
def test_the_other_settings_request_none(make: Callable[..., App], users: str) -> None:
    app = make(LEAST_DIALOGUES, users)
    assert tick(app).told == []
    assert jobs(app) == []


def test_a_spent_budget_puts_the_request_off(make: Callable[..., App]) -> None:
    app = make(LEAST_DIALOGUES, scheduler=NEVER.model_copy(update={"budget_minutes": 1.0}))
    assert tick(app).told == []
    assert jobs(app) == []


def test_a_failed_job_is_followed_by_another_when_the_dialogues_have_doubled(
    make: Callable[..., App],
) -> None:
    app = make(LEAST_DIALOGUES)
    tick(app)
    end(app, jobs(app)[0].job)
    assert tick(app).told == []
    play(app, *(f"shop/cancel/{seed}" for seed in range(LEAST_DIALOGUES)), second=10**9)
    assert len(tick(app).told) == 1
    newest, _ = jobs(app)
    assert newest.job == derive_id("user job", "agent", "base", "2")


def test_dialogues_of_a_clock_that_is_ahead_follow_no_failure(make: Callable[..., App]) -> None:
    app = make(0)
    play(app, *(f"shop/return/{seed}" for seed in range(LEAST_DIALOGUES)), second=4 * 10**9)
    tick(app)
    end(app, jobs(app)[0].job)
    assert tick(app).told == []
    assert len(jobs(app)) == 1


def test_so_is_a_failed_gate_and_a_passed_one_by_none(make: Callable[..., App]) -> None:
    app = make(LEAST_DIALOGUES)
    tick(app)
    first = jobs(app)[0].job
    end(app, first, "trained")
    decide(app, user_produced("u", job=first))
    assert tick(app).told == [], "it is to be measured"
    decide(app, user_evaluated("u", passed=False))
    assert tick(app).told == []
    play(app, *(f"shop/cancel/{seed}" for seed in range(LEAST_DIALOGUES)), second=10**9)
    tick(app)
    second = jobs(app)[0].job
    assert second != first
    end(app, second, "trained")
    decide(app, user_produced("v", job=second), user_evaluated("v"))
    play(app, *(f"shop/exchange/{seed}" for seed in range(2 * LEAST_DIALOGUES)), second=2 * 10**9)
    assert tick(app).told == []


@pytest.mark.long
def test_another_base_begins_anew(make: Callable[..., App], make_app: MakeApp) -> None:
    app = make(LEAST_DIALOGUES)
    tick(app)
    end(app, jobs(app)[0].job)
    later = make_app(scheduler=NEVER, base="newer")
    play(later, "shop/return/99", second=10**9, base="newer", purpose="evaluate")
    later.append([ended("seen again", at(10**9), base="newer")])
    later.settle()
    assert len(tick(later).told) == 1
    assert [job.base for job in jobs(later)] == ["newer", "base"]


def test_a_request_of_the_most_dialogues_of_the_setting_fits_into_a_record(
    make: Callable[..., App],
) -> None:
    (number, _) = Improve.model_json_schema()["properties"]["users_dialogues"]["anyOf"]
    most = number["maximum"]
    with pytest.raises(ValidationError, match="less than or equal to"):
        Improve(users_dialogues=most + 1)
    pool = TaskPool(
        name="users",
        tasks=("shop/return/1",),
        references=tuple(f"telecom/network_mode_preference/{LAST_SEED - n}" for n in range(most)),
    )
    spec = JobSpec(
        job="j", base="base", checkpoint="/base", environment="telecom", teaches="user",
        pools=(pool,),
    )  # fmt: skip
    app = make(0)
    decide(app, JobRequested(job="j", alias="agent", base="base", spec=spec, minutes=1))
    assert [job.job for job in jobs(app)] == ["j"]
