"""Jobs whose pools have an environment, a user or a reward of their own."""

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from daemon.adapters.directory import verify
from daemon.config.presets import PRESETS
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.job import Job, run
from daemon.solver.journal import DEFINITIONS, write_definitions
from daemon.solver.kinds import check_supported
from daemon.solver.sampling.remote import USER_TOKENS
from daemon.solver.spec import NotSupported
from daemon.solver.telemetry.outcome import Outcome
from daemon.solver.telemetry.progress import Progress
from envs.reflection.repair import build_gold, read_answer
from envs.reflection.reward import compute_reward
from envs.task import TaskDefinition, write_body
from envs.users import STOP
from events.jobs import JobSpec
from events.messages import Message
from tests.daemon.engine.conftest import listening
from tests.daemon.solver import letters
from tests.daemon.solver.forked import ForkedJob
from tests.daemon.solver.lessons import REFLECTION, write_lesson
from tests.envs import mini
from tests.envs.model_server import Json, ModelServer, messages_of, refused, said
from tests.envs.parts_of_shop import find_environment

MINI: Final = str(Path(mini.__file__))
LESSONS: Final = [write_lesson("two_writes", seed) for seed in range(6)]
BODIES: Final = {task.id: task for task in LESSONS}


def spec(**changes: Any) -> JobSpec:
    """Four pools of the reference policy: traffic, two of lessons, and one in another
    environment."""
    fields: dict[str, Any] = {
        "job": "j",
        "base": "reference",
        "checkpoint": str(CHECKPOINT),
        "environment": "shop",
        "pools": [
            {"name": "traffic", "tasks": [f"shop/question/{n}" for n in range(500, 504)]},
            {"name": "repairs", "tasks": [t.id for t in LESSONS[:3]], "reward": "repair"},
            {"name": "wholes", "tasks": [t.id for t in LESSONS[3:]], "reward": "both"},
            {
                "name": "orders",
                "tasks": ["mini/cancel/0", "mini/tell/1"],
                "references": ["mini/cancel/2"],
                "environment": MINI,
            },
        ],
        "seed": 5,
        "sampler": {"groups": 4, "size": 4, "rollouts": 33, "max_tokens": 48, "adaptive": False},
        "warm_start": {"mode": "always"},
        "algorithm": PRESETS["sr_paper"].algorithm.model_dump(mode="json"),
        "optimizer": {"lr": 0.001},
        "limits": {"kl": None, "entropy_factor": None, "malformed_factor": None},
        "threads": 1,
    }
    return JobSpec.model_validate({**fields, **changes})


def lay(folder: Path, tasks: list[TaskDefinition]) -> Path:
    """The directory of a job with the bodies of these tasks in it."""
    folder.mkdir()
    bodies = {task.id: write_body(task.dump_body()) for task in tasks}
    (folder / DEFINITIONS).write_bytes(write_definitions(bodies))
    return folder


def read_rollouts(folder: Path) -> dict[str, list[Json]]:
    """The rollouts of a journal by the first part of their task's id, lessons by their own."""
    played: defaultdict[str, list[Json]] = defaultdict(list)
    for line in (folder / "rollouts.jsonl").read_bytes().splitlines()[1:]:
        for rollout in json.loads(line):
            played[rollout["task"]].append(rollout)
    return played


@dataclass(frozen=True)
class Whole:
    """A job that ran through."""

    out: Path
    outcome: Outcome
    told: list[Progress]
    rollouts: dict[str, list[Json]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    out = lay(tmp_path_factory.mktemp("jobs") / "whole", LESSONS)
    told: list[Progress] = []
    outcome = run(spec(), out, told.append)
    return Whole(out, outcome, told, read_rollouts(out))


def test_tasks_are_played_in_the_environment_of_their_pool(whole: Whole) -> None:
    assert whole.outcome.outcome == "trained", whole.outcome.reason
    assert whole.outcome.rollouts == 33, "two batches and a reference"
    (shown,) = whole.rollouts["mini/cancel/2"]
    assert (shown["policy"], shown["success"]) == ("oracle", True)
    sampled = [r for task in ("mini/cancel/0", "mini/tell/1") for r in whole.rollouts[task]]
    assert len(sampled) == 8
    prompt = Chat(CHECKPOINT).text(sampled[0]["turns"][0]["prompt_ids"])
    assert "Ask before you cancel." in prompt
    last = whole.told[-1]
    assert set(last.pools) == {"traffic", "repairs", "wholes", "orders"}
    kinds = {"question", "two_writes", "mini/cancel", "mini/tell"}
    assert set(last.capabilities) == kinds, "kinds of another environment have its name before them"


def test_a_repair_is_the_worth_of_the_first_message(whole: Whole) -> None:
    chat = Chat(CHECKPOINT)
    repaired = [r for task in LESSONS[:3] for r in whole.rollouts.get(task.id, [])]
    assert len(repaired) == 8
    assert len({r["reward"] for r in repaired}) > 2
    for rollout in repaired:
        check_repair(chat, rollout)


def check_repair(chat: Chat, rollout: Json) -> None:
    """See that a rollout has one turn, and the worth of its tokens."""
    (turn,) = rollout["turns"]
    assert REFLECTION not in chat.text(turn["prompt_ids"])
    lesson = BODIES[rollout["task"]].lesson
    assert lesson is not None
    message = chat.message(turn["completion_ids"])
    answer = read_answer(chat.read_text(turn["completion_ids"]), message.tool_calls)
    expected = 0.0 if turn["truncated"] else compute_reward(answer, build_gold(lesson))
    assert rollout["reward"] == rollout["repair"] == expected
    (right,) = lesson.calls
    made = [(call.name, call.arguments) for call in message.tool_calls]
    assert rollout["success"] == (made == [(right.name, right.arguments)])


def test_repairs_that_a_server_played_are_worth_the_same(tmp_path: Path) -> None:
    chat = Chat(CHECKPOINT)
    out = lay(tmp_path / "out", LESSONS)
    with listening(Policy.load(CHECKPOINT, "reference"), chat) as live:
        source = {"kind": "endpoint", "url": f"{live.url}/v1", "model": "reference"}
        sampler = {"groups": 2, "size": 4, "rollouts": 8, "max_tokens": 48, "source": source}
        pools = [{"name": "a", "tasks": [t.id for t in LESSONS[:2]], "reward": "repair"}]
        job = spec(pools=pools, sampler=sampler, warm_start=None)
        with Job(job, out) as whole:
            next(iter(whole))
    played = [r for own in read_rollouts(out).values() for r in own]
    assert len(played) == 8
    for rollout in played:
        check_repair(chat, rollout)


def test_both_is_the_larger_of_the_verdict_and_half_of_the_repair(whole: Whole) -> None:
    played = [r for task in LESSONS[3:] for r in whole.rollouts.get(task.id, [])]
    assert len(played) == 8
    assert any(len(rollout["turns"]) > 1 for rollout in played), "the episode goes on"
    for rollout in played:
        if rollout["success"]:
            assert rollout["reward"] >= 0.5
        else:
            assert rollout["reward"] == rollout["repair"] / 2
    assert all("repair" not in r for task in whole.rollouts if "/=" not in task
               for r in whole.rollouts[task])  # fmt: skip


def test_figures_and_provenance_say_what_a_pool_is_rewarded_by(whole: Whole) -> None:
    last = whole.told[-1]
    rewards = {name: both.reward for name, both in last.pools.items()}
    assert rewards == {"traffic": None, "orders": None, "repairs": "repair", "wholes": "both"}
    assert last.metrics is not None
    assert last.metrics.repair is not None
    repairs = [r["repair"] for task in whole.rollouts for r in whole.rollouts[task][-4:]
               if "repair" in r]  # fmt: skip
    assert 0 <= last.metrics.repair <= max(repairs)
    pools = verify(whole.out / "adapter").spec["pools"]
    assert [pool.get("reward") for pool in pools] == [None, "repair", "both", None]
    assert pools[3]["environment"] == MINI


@pytest.mark.processes
def test_a_killed_job_goes_on_to_the_same_adapter(whole: Whole, tmp_path: Path) -> None:
    out = lay(tmp_path / "killed", LESSONS)
    (tmp_path / "job.json").write_text(spec().model_dump_json())
    with ForkedJob(["job.json", "--out", str(out)], folder=tmp_path) as one:
        journal = out / "rollouts.jsonl"
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 2):
            assert one.poll() is None
            time.sleep(0.01)
        assert one.kill() == -signal.SIGKILL
    assert run(spec(), out).sha256 == whole.outcome.sha256
    assert journal.read_bytes() == (whole.out / "rollouts.jsonl").read_bytes()


def keep_apart() -> JobSpec:
    """A job in two environments that are kept apart, with refills."""
    pools = [
        {
            "name": name,
            "tasks": [f"{name}/{kind}/{number}" for number in range(700, 712)],
            "environment": find_environment(name),
        }
        for name, kind in (("changes", "two_writes"), ("questions", "question"))
    ]
    sampler = {
        "groups": 2, "size": 4, "rollouts": 60, "max_tokens": 48, "environments": "apart"
    }  # fmt: skip
    algorithm = spec().algorithm.model_validate({"filter": {"refill": 2}}).model_dump()
    changes = {"pools": pools, "sampler": sampler, "algorithm": algorithm, "warm_start": None}
    return spec(environment=find_environment("changes"), **changes)


@pytest.mark.processes
def test_a_killed_job_in_environments_kept_apart_refills_as_the_whole_one(tmp_path: Path) -> None:
    job, told, out = keep_apart(), list[Progress](), tmp_path / "killed"
    whole = run(job, tmp_path / "whole", told.append)
    assert (whole.outcome, whole.rollouts) == ("trained", 56), "a batch more is over the budget"
    (tmp_path / "job.json").write_text(job.model_dump_json())
    with ForkedJob(["job.json", "--out", str(out)], folder=tmp_path) as one:
        journal = out / "rollouts.jsonl"
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 4):
            assert one.poll() is None
            time.sleep(0.01)
        assert one.kill() == -signal.SIGKILL
    assert run(job, out).sha256 == whole.sha256
    assert journal.read_bytes() == (tmp_path / "whole" / "rollouts.jsonl").read_bytes()
    check_updates(tmp_path / "whole" / "rollouts.jsonl", told)


def check_updates(journal: Path, told: list[Progress]) -> None:
    """See that some updates have refills, and that each is of one environment, both in turn."""
    names = [
        {rollout["task"].partition("/")[0] for rollout in json.loads(line)}
        for line in journal.read_bytes().splitlines()[1:]
    ]
    ends = [progress.rollouts // 8 for progress in told]
    updates = [names[begin:end] for begin, end in pairwise([0, *ends])]
    assert any(len(batches) > 1 for batches in updates), "no batch was refilled"
    assert all(batch == batches[0] for batches in updates for batch in batches)
    assert all(len(batches[0]) == 1 for batches in updates)
    drawn = Counter(name for batch in names for name in batch)
    assert set(drawn.values()) <= {3, 4}, "each has its share of the batches"


def test_the_default_filter_learns_from_repairs_by_their_success(tmp_path: Path) -> None:
    """After a redundant call nothing but words is expected, which the policy says or does not."""
    plain = spec().algorithm.model_validate({})
    tasks = [expect_words(task) for task in LESSONS[:3]]
    pools = [{"name": "words", "tasks": [t.id for t in tasks], "reward": "repair"}]
    sampler = {"groups": 2, "size": 8, "rollouts": 16, "max_tokens": 48}
    changes = {"pools": pools, "sampler": sampler, "warm_start": None}
    told: list[Progress] = []
    out = lay(tmp_path / "out", tasks)
    outcome = run(spec(**changes, algorithm=plain.model_dump()), out, told.append)
    assert outcome.outcome == "trained", outcome.reason
    verdicts = {r["success"] for own in read_rollouts(out).values() for r in own}
    assert verdicts == {True, False}
    assert told[0].metrics is not None
    assert told[0].metrics.informative > 0


def expect_words(task: TaskDefinition) -> TaskDefinition:
    assert task.lesson is not None
    changes = {"calls": (), "final": "There is nothing more to do."}
    lesson = task.lesson.model_copy(update=changes)
    return task.model_copy(update={"lesson": lesson}).name_by_content()


USER: Final = {"url": "http://127.0.0.1:1/v1", "model": "customer"}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"pool": {"reward": "skill"}}, "pool traffic has the reward 'skill'.*give it 'verdict'"),
        ({"pool": {"user": USER}}, "by customer at http://127.0.0.1:1/v1.*'endpoint' or 'vllm'"),
    ],
)
def test_what_this_learner_does_not_do_is_named_before_anything_is_played(
    changes: dict[str, Any], names: str, tmp_path: Path
) -> None:
    pool = {"name": "traffic", "tasks": ["shop/cancel/1"], **changes.pop("pool", {})}
    job = spec(pools=[pool], warm_start=None, **changes)
    with pytest.raises(NotSupported, match=names) as raised:
        check_supported(job)
    outcome = run(job, tmp_path / "out")
    assert (outcome.outcome, outcome.reason) == ("failed", str(raised.value))
    assert not (tmp_path / "out").exists()


def test_a_job_of_a_user_is_not_played(tmp_path: Path) -> None:
    job = spec(warm_start=None, teaches="user")
    with pytest.raises(NotSupported, match=r"teaches the user.*its spec has grpo.*leave it out"):
        check_supported(job)
    outcome = run(job, tmp_path / "out")
    assert outcome.outcome == "failed"
    assert "teaches a user, and plays nothing" in str(outcome.reason)
    assert not (tmp_path / "out").exists()


NO_LESSON = LESSONS[0].model_copy(update={"lesson": None}).name_by_content()
AT_USERS_TURN = LESSONS[0].model_copy(
    update={"prefix": (*LESSONS[0].prefix[:1], Message(role="assistant", content="Which one?"))}
).name_by_content()  # fmt: skip
OTHER_SHOP = """
from envs.shop.environment import Shop


class Branch(Shop):
    name = "shop"
"""


@pytest.mark.parametrize(
    ("pool", "names"),
    [
        (
            {"tasks": [LESSONS[1].id, NO_LESSON.id], "reward": "repair"},
            f"pool odd is rewarded for repairs, and its task {NO_LESSON.id} has no lesson",
        ),
        ({"tasks": ["shop/cancel/1"], "reward": "both"}, "task shop/cancel/1 has no lesson"),
        (
            {"tasks": [AT_USERS_TURN.id], "reward": "repair"},
            f"the prefix of its task {AT_USERS_TURN.id} leaves the turn to the user",
        ),
        ({"tasks": ["mini/cancel/1"]}, "no task 'mini/cancel/1'"),
        (
            {"tasks": ["shop/cancel/1"], "environment": MINI},
            "pool odd is of environment mini, and its task shop/cancel/1 is not",
        ),
        ({"tasks": ["mini/cancel/1"], "environment": "minni"}, "no environment 'minni'"),
        (
            {"tasks": ["shop/cancel/1"], "environment": "branch.py"},
            "and both are named shop: a task's id does not tell them apart; rename one",
        ),
    ],
)
def test_a_pool_that_cannot_be_played_is_named_before_anything_is_played(
    pool: dict[str, Any], names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("branch.py").write_text(OTHER_SHOP)
    out = lay(tmp_path / "out", [*LESSONS, NO_LESSON, AT_USERS_TURN])
    told: list[Progress] = []
    outcome = run(spec(pools=[{"name": "odd", **pool}], warm_start=None), out, told.append)
    assert outcome.outcome == "failed"
    assert names in str(outcome.reason)
    assert told == []
    assert not (out / "rollouts.jsonl").exists()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


def play_user(body: Json) -> Json:
    """The model of a user: says a letter, and hangs up when it was answered."""
    heard = [m for m in messages_of(body) if m.role == "assistant"]
    return said(STOP if heard else "c")


@contextmanager
def users_of(
    base: Path, answering: Callable[[Json], Any], **changes: Any
) -> Iterator[tuple[ModelServer, JobSpec]]:
    """The model that plays the users of one of two pools, and a job in `letters` on a server."""
    with (
        ModelServer(answering) as server,
        listening(Policy.load(base, "letters"), Chat(base)) as live,
    ):
        user = {"url": server.url, "model": "customer", "temperature": 0.5, **changes}
        target, kept = letters.spec(base)["pools"]
        source = {"kind": "endpoint", "url": f"{live.url}/v1", "model": "letters"}
        sampler = {**letters.spec(base)["sampler"], "rollouts": 32, "source": source}
        fields = letters.spec(base, pools=[target | {"user": user}, kept], sampler=sampler)
        yield server, JobSpec.model_validate(fields)


def test_a_job_ends_with_what_it_has_learnt_where_the_tokens_of_its_users_are_spent(
    base: Path, tmp_path: Path
) -> None:
    with users_of(base, play_user, max_tokens=8, budget=10**6) as (_, job):
        assert run(job, tmp_path / "whole").reason is None
    spent, largest = map(int, (tmp_path / "whole" / USER_TOKENS).read_text().split())
    assert 0 < largest < spent
    with users_of(base, play_user, max_tokens=8, budget=largest) as (server, job):
        outcome = run(job, tmp_path / "short")
        count = len(server.requests)
        assert run(job, tmp_path / "short").outcome == "trained"
        assert len(server.requests) == count, "and asks no more when it is run again"
    assert (outcome.outcome, outcome.rollouts) == ("trained", 16)
    assert "it ended after 16 rollouts: the model that plays the users has" in str(outcome.reason)
    assert f"models.user.max_tokens is {largest:,}; raise it" in str(outcome.reason)


def test_a_model_plays_the_users_of_its_pool(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_KEY", "secret")
    out = tmp_path / "out"
    with users_of(base, play_user, api_key_variable="USER_KEY") as (server, job):
        outcome = run(job, out)
    assert outcome.outcome == "trained", outcome.reason
    chat = Chat(base)
    for task, rollouts in read_rollouts(out).items():
        seed = int(task.rpartition("/")[2])
        prompts = {chat.text(r["turns"][0]["prompt_ids"]) for r in rollouts}
        assert len(prompts) == 1
        by_model = "<user>c<end>" in prompts.pop()
        scripted = letters.Letters().generate("half", seed).script
        assert scripted is not None
        assert by_model == (seed < 100 or scripted.opening == "c")
    assert server.keys == {"Bearer secret"}
    assert {body["model"] for body in server.requests} == {"customer"}
    assert {body["temperature"] for body in server.requests} == {0.5}
    assert "secret" not in (out / "rollouts.jsonl").read_text()


def test_a_batch_that_a_model_took_part_in_is_kept_over_a_stop(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with users_of(base, play_user) as (server, job):
        with Job(job, out) as left:
            next(iter(left))
        kept, asked = (out / "rollouts.jsonl").read_bytes(), len(server.requests)
        outcome = run(job, out)
    assert outcome.outcome == "trained", outcome.reason
    assert (out / "rollouts.jsonl").read_bytes().startswith(kept)
    first = json.loads(kept.splitlines()[1])
    played = [r["turns"][0] for r in first if int(r["task"].rpartition("/")[2]) < 100]
    lines = sum(2 - turn["truncated"] for turn in played)
    assert asked == lines, "a model is asked for each of its lines once"


@pytest.mark.parametrize(
    ("changes", "answering", "names"),
    [
        ({"api_key_variable": "NO_SUCH_KEY"}, play_user, "from NO_SUCH_KEY, which is not set"),
        ({"url": "nowhere"}, play_user, "base URL 'nowhere' must begin with http"),
        ({"url": "http://127.0.0.1:9/v1"}, play_user, "127.0.0.1:9"),
        ({}, lambda _: refused(404, "no such model"), "no such model"),
    ],
)
def test_a_user_that_does_not_answer_ends_the_job_with_a_sentence(
    changes: dict[str, Any], answering: Any, names: str, base: Path, tmp_path: Path
) -> None:
    with users_of(base, answering, **changes) as (_, job):
        outcome = run(job, tmp_path / "out")
    assert outcome.outcome == "failed"
    assert names in str(outcome.reason)
