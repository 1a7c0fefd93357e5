"""Users that err: how often, that attribution sees it, and what a report makes of arms."""

from pathlib import Path

import pytest

from daemon.adapters.directory import BadAdapter
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.job import ADAPTER
from daemon.solver.sampling.local import Attempt, InProcess
from envs.attribution.user_faults import find_user_fault
from envs.episode import Episode, play
from envs.registry import open_place
from envs.shop.environment import Shop
from events.jobs import AdapterUser, JobSpec, Sampler, TaskPool
from ops.learning.results import Source
from ops.learning.screen.run import Training, spend
from ops.learning.user_faults.__main__ import main
from ops.learning.user_faults.report import describe
from ops.learning.user_faults.run import Result, UserFaults, cast, read_faults
from ops.learning.user_faults.settings import BASE, CLEAN, TRAFFIC
from ops.learning.user_faults.shop import write_definition
from ops.learning.users.run import save_base
from ops.learning.users.settings import SETTINGS


def open_shop(folder: Path, rate: float) -> Shop:
    place = folder / f"shop{rate}.py"
    place.write_text(write_definition(rate, users_err=True))
    environment = open_place(str(place))
    assert isinstance(environment, Shop)
    return environment


def count_faults(environment: Shop, seeds: range) -> tuple[int, int]:
    """How many users of these episodes were blamed, and how many tasks failed."""
    blamed = failed = 0
    for seed in seeds:
        task = environment.generate("cancel", seed)
        episode = play(
            Episode(environment, task, seed=seed),
            environment.oracle(task),
            environment.make_user(task, seed),
        )
        blamed += find_user_fault(environment, task, episode.messages) is not None
        failed += environment.user(task).reply(()) != environment.make_user(task, seed).reply(())
    return blamed, failed


def test_users_err_at_the_rate_of_their_shop(tmp_path: Path) -> None:
    assert count_faults(open_shop(tmp_path, 0.0), range(50)) == (0, 0)
    blamed, changed = count_faults(open_shop(tmp_path, 0.9), range(50))
    assert blamed > 25
    assert changed > 5


def test_a_user_follows_from_task_and_seed(tmp_path: Path) -> None:
    first, second = open_shop(tmp_path, 0.5), open_shop(tmp_path, 0.5)
    tasks = [first.generate("two_writes", seed) for seed in range(20)]
    lines = [
        [shop.make_user(task, seed).reply(()).text for seed, task in enumerate(tasks)]
        for shop in (first, second)
    ]
    assert lines[0] == lines[1]


def test_an_engine_judges_no_rollout_of_a_user_that_erred(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, 0.9)
    tasks = [shop.generate("cancel", seed) for seed in range(16)]
    attempts = [
        Attempt(task=task, group=task.id, seed=seed, rollout=task.id)
        for seed, task in enumerate(tasks)
    ]
    policy = Policy.load(CHECKPOINT, "reference")
    player = InProcess(Engine(policy, 16, 512), Chat(CHECKPOINT), max_tokens=64)
    rollouts = list(player.play(shop, attempts, policy))
    blamed = [rollout for rollout in rollouts if rollout.trajectory.user_fault is not None]
    assert len(blamed) >= 4
    assert {(item.verdict, item.trajectory.success) for item in blamed} == {(None, None)}


def test_a_folder_without_results_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--out", str(tmp_path)]) == 1
    assert "base and clean" in capsys.readouterr().err
    assert main(["run", "--out", str(tmp_path), "--arms", "tuned"]) == 1
    assert "tuned: an adapter plays its users" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "--out", str(tmp_path), "--arms", "loud_5"])
    assert "'loud_5' is no arm" in capsys.readouterr().err


def make_result(arm: str, rate: float) -> Result:
    """A result of which this share of the trials at each of 4 tasks passed, on each weak kind."""
    passes = tuple(number < 10 * rate for number in range(10))
    kinds = {kind: {f"shop/{kind}/{task}": passes for task in range(4)} for kind in TRAFFIC.traffic}
    source = Source(commit="c", clean=True, settings="s", base="b")
    return Result(
        arm=arm, seed=1, development=False, source=source, training=Training(),
        faults=UserFaults(), seconds=1.0, outcomes=kinds,
    )  # fmt: skip


def test_an_arm_with_its_own_budget_recovers_of_what_its_silent_arm_costs() -> None:
    rates = {
        BASE: 0.2, CLEAN: 0.8, "silent_20": 0.3, "judged_20": 0.5,
        "clean_short": 0.7, "judged_20_long": 0.7,
    }  # fmt: skip
    table = describe([make_result(arm, rate) for arm, rate in rates.items()])
    rows = {row.split(" | ")[0].strip("| "): row for row in table.splitlines()}
    assert rows["judged_20"].endswith("+0.200 [+0.200, +0.200] | 40% |")
    assert rows["judged_20_long"].endswith("+0.400 [+0.400, +0.400] | 80% |")
    assert rows["clean_short"].endswith(" |  |  |")


@pytest.mark.learning
def test_a_job_whose_users_all_err_learns_nothing_and_says_so(tmp_path: Path) -> None:
    save_base(SETTINGS, tmp_path / "users" / "0" / ADAPTER)
    pool = TaskPool(name="p", tasks=("shop/cancel/1", "shop/address/2"))
    spec = JobSpec(
        job="j",
        base="reference",
        checkpoint=str(CHECKPOINT),
        environment="shop",
        pools=(pool,),
        sampler=Sampler(groups=2, size=4, rollouts=16),
        threads=1,
    )
    (pool,) = cast(spec, tmp_path / "users", 0).pools
    assert isinstance(pool.user, AdapterUser)
    # Every line is cut off, also one that is drawn again.
    user = pool.user.model_copy(update={"max_tokens": 1})
    played = spec.model_copy(update={"pools": (pool.model_copy(update={"user": user}),)})
    training, adapter = spend(played, tmp_path / "job")
    assert adapter is None
    faults = read_faults(played, tmp_path / "job")
    assert faults.rollouts == 16
    assert faults.unjudged == 16
    reason = f"none of 16 rollouts taught anything: {faults.unjudged} cannot be trained on"
    assert reason in str(training.reason)
    assert "because: its user erred" in str(training.reason)
    with pytest.raises(BadAdapter):
        cast(spec, tmp_path / "users", 512)
