"""A whole job in this process: what it learns, what it leaves, how it ends."""

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from daemon.adapters.directory import verify
from daemon.adapters.fingerprint import distance
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine, Request
from daemon.engine.policy import Policy
from daemon.solver.job import Job, JobInterrupt, run
from daemon.solver.journal import SUCCESSES, write_successes
from daemon.solver.spec import digest
from daemon.solver.telemetry.outcome import Outcome
from daemon.solver.telemetry.progress import Progress
from daemon.solver.warm_start import reference
from envs.registry import open_place
from events.jobs import JobSpec
from tests.daemon.solver import letters


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return letters.checkpoint(tmp_path_factory.mktemp("base"))


def spec(base: Path, **changes: Any) -> JobSpec:
    return JobSpec.model_validate(letters.spec(base, **changes))


def done(spec: JobSpec, out: Path) -> tuple[Outcome, list[Progress]]:
    said: list[Progress] = []
    return run(spec, out, said.append), said


def spell(**changes: Any) -> dict[str, Any]:
    """Pools that nobody passes by chance, with references."""
    return {
        "pools": [
            {
                "name": "word",
                "tasks": letters.ids("spell", 0, 20),
                "references": letters.ids("spell", 50, 16),
            },
            {
                "name": "kept",
                "share": 0.25,
                "replay": True,
                "tasks": letters.ids("half", 0, 20),
                "references": letters.ids("half", 50, 4),
            },
        ],
        "probe": {"groups": 3},
        **changes,
    }


WARM: dict[str, Any] = {
    "siblings": letters.ids("half", 80, 4),
    "sft": {"epochs": 8, "batch_tokens": 64, "optimizer": {"lr": 0.02}},
}


def test_a_job_learns_and_leaves_an_adapter_that_is_better(base: Path, tmp_path: Path) -> None:
    sampler = {"groups": 8, "size": 16, "rollouts": 2560, "max_tokens": 8}
    job = spec(base, sampler=sampler, optimizer={"lr": 0.02})
    outcome, said = done(job, tmp_path)
    assert outcome.outcome == "trained"
    assert outcome.rollouts == 2560
    assert outcome.steps == said[-1].steps == 20
    early, late = (
        sum(p.metrics.success for p in part if p.metrics) / len(part)
        for part in (said[:4], said[-8:])
    )
    assert early < 0.45
    assert late > early + 0.1
    found = verify(tmp_path / "adapter")
    assert found.files["adapter_model.safetensors"] == outcome.sha256
    assert (found.steps, found.seed) == (outcome.steps, 3)
    assert found.spec == job.model_dump(mode="json")


@pytest.mark.parametrize(
    "optimizer",
    [{"lr": 10, "weight_decay": 100}, {"lr": 10, "betas": [0.999999, 0.0], "eps": 1e-15}],
)
def test_a_job_that_diverges_is_a_failure_with_the_remedy(
    optimizer: dict[str, Any], base: Path, tmp_path: Path
) -> None:
    outcome, _ = done(spec(base, optimizer=optimizer, lora={"alpha": 1e6}), tmp_path)
    assert (outcome.outcome, outcome.adapter) == ("failed", None)
    assert "lower optimizer.lr" in str(outcome.reason)
    assert not (tmp_path / "adapter").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimizer": {"lr": 1e300}}, "optimizer.lr is 1e+300, outside of its range"),
        (
            {"sampler": {"source": {"kind": "in_process", "length": 65}, "rollouts": 64}},
            "sampler.source.length is 65, and the context of the model is 64 tokens; lower it",
        ),
    ],
)
def test_a_number_that_no_training_takes_is_a_failure(
    changes: dict[str, Any], reason: str, base: Path, tmp_path: Path
) -> None:
    outcome, said = done(spec(base, **changes), tmp_path)
    assert (outcome.outcome, said) == ("failed", [])
    assert reason in str(outcome.reason)


def test_figures_add_up(base: Path, tmp_path: Path) -> None:
    outcome, said = done(spec(base), tmp_path)
    assert [p.rollouts for p in said] == list(range(16, 129, 16))
    assert {p.budget for p in said} == {128}
    for name in ("target", "kept"):
        both = [p.pools[name] for p in said if name in p.pools]
        attempts = sum(b.batch.attempts for b in both if b.batch)
        passes = sum(b.batch.attempts * b.batch.passed for b in both if b.batch)
        assert both[-1].so_far.attempts == attempts
        assert both[-1].so_far.passed == pytest.approx(passes / attempts)
        assert both[-1].so_far.groups == attempts // 4
    whole = said[-1].capabilities["half"].so_far
    assert whole.attempts == outcome.rollouts
    informative = [p.metrics.informative for p in said if p.metrics]
    assert whole.informative == pytest.approx(sum(informative) / len(informative))


def test_the_journal_holds_every_rollout_and_provenance_those_that_taught(
    base: Path, tmp_path: Path
) -> None:
    outcome, said = done(spec(base), tmp_path)
    lines = (tmp_path / "rollouts.jsonl").read_bytes().splitlines()
    rollouts = [one for line in lines[1:] for one in json.loads(line)]
    assert len(rollouts) == outcome.rollouts == 128
    assert len({one["rollout"] for one in rollouts}) == 128
    by_group: dict[str, list[bool]] = {}
    for one in rollouts:
        by_group.setdefault(one["group"], []).append(one["success"])
    taught = {
        one["rollout"]
        for one in rollouts
        if 0 < sum(by_group[one["group"]]) < len(by_group[one["group"]])
    }
    assert set(verify(tmp_path / "adapter").rollouts) == taught
    newest = [f"j-{steps}" for steps in (0, *(p.steps for p in said[:-1]))]
    assert [one["policy"] for one in rollouts[::16]] == newest


def test_checkpoints_are_the_policies_within_their_budgets(base: Path, tmp_path: Path) -> None:
    whole = spec(base, checkpoints=[40, 64, 128])
    outcome, _ = done(whole, tmp_path / "whole")
    for count in (32, 64):
        sampler = letters.spec(base)["sampler"] | {"rollouts": count}
        shorter, _ = done(spec(base, sampler=sampler), tmp_path / str(count))
        named = {32: 40, 64: 64}[count]
        saved = verify(tmp_path / "whole" / "checkpoints" / str(named))
        assert saved.files["adapter_model.safetensors"] == shorter.sha256
    last = verify(tmp_path / "whole" / "checkpoints" / "128")
    assert last.files["adapter_model.safetensors"] == outcome.sha256
    Policy.load(base, "letters").with_adapter(tmp_path / "whole" / "checkpoints" / "64", "at 64")


def test_an_adapter_says_what_it_and_its_base_answer(base: Path, tmp_path: Path) -> None:
    done(spec(base, checkpoints=[64]), tmp_path)
    early, late = (verify(tmp_path / place).fingerprint for place in ("checkpoints/64", "adapter"))
    assert early is not None
    assert late is not None
    assert early.base == late.base
    assert distance(early.adapter, late.adapter) > 0.01
    assert distance(late.base, late.adapter) > 0.01
    policy = Policy.load(base, "letters").with_adapter(tmp_path / "adapter", "late")
    token, logprob = late.adapter.answers[0][0][0]
    engine = Engine(policy, slots=1, length=32)
    engine.submit(policy, Request(late.prompts[0], max_tokens=1, temperature=0))
    (emission,) = engine.tick()
    assert emission.token == token
    assert emission.logprob == pytest.approx(logprob, abs=1e-4)


def test_a_job_that_was_left_goes_on_to_the_same_adapter(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    outcome, whole = done(job, tmp_path / "whole")
    with Job(job, tmp_path / "left") as left:
        first = [next(iter(left)) for _ in range(1)]
    with Job(job, tmp_path / "left") as left:
        said = []
        for progress in left:
            said.append(progress)
            if len(said) == 4:
                break
    again, resumed = done(job, tmp_path / "left")
    assert again.sha256 == outcome.sha256
    told = verify(tmp_path / "whole" / "adapter").fingerprint
    assert told is not None
    assert verify(tmp_path / "left" / "adapter").fingerprint == told
    quiet = {"rollout_seconds": 0.0, "update_seconds": 0.0}
    assert [p.model_copy(update=quiet) for p in resumed] == [
        p.model_copy(update=quiet) for p in whole
    ]
    assert first[0].metrics == whole[0].metrics


def test_a_finished_job_repeats_its_outcome_and_does_nothing(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    outcome, _ = done(job, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again, said = done(job, tmp_path)
    assert again == outcome
    assert said == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_damaged_adapter_is_no_outcome(base: Path, tmp_path: Path) -> None:
    done(spec(base), tmp_path)
    weights = tmp_path / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    outcome, _ = done(spec(base), tmp_path)
    assert outcome.outcome == "failed"
    assert "is not what was saved" in str(outcome.reason)


def test_another_spec_in_the_same_directory_is_refused(base: Path, tmp_path: Path) -> None:
    done(spec(base), tmp_path)
    outcome, _ = done(spec(base, seed=4), tmp_path)
    assert "result of another spec" in str(outcome.reason)
    shutil.rmtree(tmp_path / "adapter")
    outcome, _ = done(spec(base, seed=4), tmp_path)
    assert "rollouts of another spec" in str(outcome.reason)


def test_two_processes_do_not_work_in_one_directory(base: Path, tmp_path: Path) -> None:
    with Job(spec(base), tmp_path):
        outcome, _ = done(spec(base), tmp_path)
    assert "another process works in" in str(outcome.reason)


def test_a_wish_to_stop_is_heard_between_rollouts(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    said: list[Progress] = []
    outcome = run(job, tmp_path, said.append, stopping=lambda: len(said) >= 3)
    assert outcome.outcome == "failed"
    assert outcome.rollouts == 48
    assert "stopped after 48 rollouts; run the same command" in str(outcome.reason)
    with pytest.raises(JobInterrupt), Job(job, tmp_path, stopping=lambda: True) as stopped:
        list(stopped)
    resumed, _ = done(job, tmp_path)
    assert resumed.outcome == "trained"


def test_tasks_that_nobody_passes_are_a_competence_gap(base: Path, tmp_path: Path) -> None:
    job = spec(base, **spell())
    outcome, said = done(job, tmp_path)
    assert outcome.outcome == "competence_gap"
    assert outcome.adapter is None
    assert outcome.sha256 is None
    assert outcome.rollouts == 16 == said[-1].rollouts, "a probe is enough"
    assert "spell: 0 of 16 passed, 0 of 4 groups informative" in str(outcome.reason)
    assert not (tmp_path / "adapter").exists()
    again, said = done(job, tmp_path)
    assert again == outcome
    assert said == []


def test_a_warm_start_makes_learnable_what_was_a_gap(base: Path, tmp_path: Path) -> None:
    outcome, said = done(spec(base, **spell(warm_start=WARM)), tmp_path)
    assert outcome.outcome == "trained", outcome.reason
    (warm,) = [p for p in said if p.warm_start is not None]
    assert warm.warm_start is not None
    assert warm.warm_start.pools == ("word",)
    assert warm.warm_start.references == 24
    assert warm.rollouts == 16 + 24, "references count as rollouts"
    assert warm.warm_start.last_loss < warm.warm_start.first_loss
    after = said[-1].capabilities["spell"].so_far
    assert after.passed > 0.2
    assert after.attempts < 128 - 24, "counted anew after the warm start"


def test_a_pool_that_can_be_learnt_gets_no_warm_start(base: Path, tmp_path: Path) -> None:
    pools = letters.spec(base)["pools"]
    pools[0]["references"] = letters.ids("half", 300, 4)
    outcome, said = done(spec(base, pools=pools, warm_start={}, probe={"groups": 2}), tmp_path)
    assert outcome.outcome == "trained"
    assert not any(p.warm_start for p in said)


def test_a_warm_start_alone_says_what_it_left_unused(base: Path, tmp_path: Path) -> None:
    warm = {**WARM, "mode": "always"}
    job = spec(base, **spell(warm_start=warm, grpo=False))
    outcome, said = done(job, tmp_path)
    assert outcome.outcome == "trained"
    assert outcome.rollouts == 24
    assert outcome.reason == "104 of 128 rollouts were left unused"
    assert len(said) == 1
    assert len(verify(tmp_path / "adapter").rollouts) == 24
    assert done(job, tmp_path)[0] == outcome


def test_a_forced_warm_start_comes_first_and_is_resumed(base: Path, tmp_path: Path) -> None:
    job = spec(base, **spell(warm_start={**WARM, "mode": "always"}))
    outcome, said = done(job, tmp_path / "whole")
    assert said[0].warm_start is not None
    with Job(job, tmp_path / "left") as left:
        for _, _progress in zip(range(2), left, strict=False):
            pass
    resumed, _ = done(job, tmp_path / "left")
    assert resumed.sha256 == outcome.sha256


def recorded(base: Path, out: Path, count: int) -> tuple[dict[str, Any], list[str]]:
    """A warm start on `count` successes alone, whose file lies in `out`, and their names."""
    environment = open_place(letters.ENVIRONMENT)
    shown = [
        reference(environment, Chat(base), environment.task(task), f"session-{number}")
        for number, task in enumerate(letters.ids("spell", 50, count))
    ]
    content = write_successes(shown)
    out.mkdir()
    (out / SUCCESSES).write_bytes(content)
    names = [item.rollout for item in shown]
    changes = spell(warm_start={**WARM, "mode": "always", "siblings": []}, grpo=False)
    changes["warm_start"]["successes"] = sha256(content).hexdigest()
    changes["pools"][0] |= {"references": [], "successes": names}
    changes["pools"][1] |= {"references": []}
    return changes, names


def test_a_warm_start_shows_recorded_successes_and_no_rollout_is_spent(
    base: Path, tmp_path: Path
) -> None:
    changes, names = recorded(base, tmp_path / "whole", 16)
    job = spec(base, **changes)
    outcome, said = done(job, tmp_path / "whole")
    assert outcome.outcome == "trained", outcome.reason
    assert outcome.rollouts == 0
    (warm,) = [p.warm_start for p in said]
    assert warm is not None
    assert (warm.successes, warm.references, warm.pools) == (16, 0, ("word",))
    assert warm.last_loss < warm.first_loss
    assert list(verify(tmp_path / "whole" / "adapter").rollouts) == names
    again, _ = recorded(base, tmp_path / "again", 16)
    assert done(spec(base, **again), tmp_path / "again")[0].sha256 == outcome.sha256


def test_a_job_that_was_cut_short_shows_the_same_successes_again(
    base: Path, tmp_path: Path
) -> None:
    results = []
    for folder in ("whole", "left"):
        changes, _ = recorded(base, tmp_path / folder, 8)
        job = spec(base, **{**changes, "grpo": True})
        if folder == "left":
            with Job(job, tmp_path / folder) as left:
                for _, _progress in zip(range(2), left, strict=False):
                    pass
        results.append(done(job, tmp_path / folder)[0])
    assert results[0].outcome == "trained", results[0].reason
    assert results[0].sha256 == results[1].sha256


@pytest.mark.parametrize(
    ("content", "words"), [(None, "is missing"), (b"[]", "it was changed; request the job anew")]
)
def test_successes_that_are_not_those_of_the_spec_end_the_job(
    base: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    changes, _ = recorded(base, tmp_path / "out", 4)
    (tmp_path / "out" / SUCCESSES).unlink()
    if content is not None:
        (tmp_path / "out" / SUCCESSES).write_bytes(content)
    outcome, said = done(spec(base, **changes), tmp_path / "out")
    assert (outcome.outcome, said) == ("failed", [])
    assert words in str(outcome.reason)


def test_a_weak_pool_without_anything_to_show_is_not_warmed(base: Path, tmp_path: Path) -> None:
    """A pool of one task has no reference; that another one has some is no help to it."""
    pools = [
        {"name": "word", "tasks": letters.ids("spell", 0, 20)},
        {"name": "half", "tasks": letters.ids("half", 0, 20),
         "references": letters.ids("half", 300, 4)},
    ]  # fmt: skip
    sampler = {"groups": 8, "size": 16, "rollouts": 384, "max_tokens": 8}
    job = spec(base, pools=pools, sampler=sampler, warm_start={}, probe={"groups": 4})
    _, said = done(job, tmp_path)
    so_far = {name: both.so_far for name, both in said[-1].pools.items()}
    assert so_far["word"].informative == 0
    assert so_far["half"].informative > 0.2
    assert so_far["word"].groups >= 4 <= so_far["half"].groups
    assert not any(p.warm_start for p in said)


def test_references_that_fail_are_left_out_and_named(base: Path, tmp_path: Path) -> None:
    given = spell(warm_start={**WARM, "mode": "always", "siblings": ["letters/mute/7"]}, grpo=False)
    outcome, said = done(spec(base, **given), tmp_path)
    assert said[0].warm_start is not None
    assert said[0].warm_start.left_out == ("letters/mute/7",)
    assert said[0].warm_start.references == 20
    assert outcome.rollouts == 21, "what was tried counts"


def test_an_oracle_that_passes_nothing_is_an_error(base: Path, tmp_path: Path) -> None:
    pools = [
        {
            "name": "mute",
            "tasks": letters.ids("mute", 0, 4),
            "references": letters.ids("mute", 9, 3),
        }
    ]
    job = spec(base, pools=pools, warm_start={"mode": "always"}, grpo=False)
    outcome, _ = done(job, tmp_path)
    assert "passed none of 3 reference tasks, the first is letters/mute/9" in str(outcome.reason)


def test_a_gap_that_references_do_not_close_is_one(base: Path, tmp_path: Path) -> None:
    """One weak supervised step: the second probe finds what the first did."""
    weak = {"sft": {"optimizer": {"lr": 1e-6}}}
    outcome, said = done(spec(base, **spell(warm_start=weak)), tmp_path)
    assert [p.warm_start is not None for p in said] == [False, True, False]
    assert outcome.outcome == "competence_gap"
    assert outcome.rollouts == 16 + 20 + 16


def test_groups_of_one_verdict_teach_nothing_and_that_is_said(base: Path, tmp_path: Path) -> None:
    """Whatever is said passes where the whole alphabet is one half."""
    pools = [{"name": "all", "tasks": letters.ids("half", 0, 40)}]
    first = {"algorithm": {"filter": {"most": 0.0}}}
    outcome, _ = done(spec(base, pools=pools, **first), tmp_path)
    assert outcome.outcome == "failed"
    assert "taught anything" in str(outcome.reason)
    assert not (tmp_path / "adapter").exists()


def test_refills_take_the_place_of_what_was_dropped(base: Path, tmp_path: Path) -> None:
    plain, once = done(spec(base), tmp_path / "plain")
    job = spec(base, algorithm={"filter": {"refill": 2}})
    refilled, more = done(job, tmp_path / "refilled")
    assert plain.rollouts == refilled.rollouts == 128
    assert len(more) < len(once)
    assert max(p.metrics.rollouts for p in more if p.metrics) > 16


def test_a_limit_of_the_guard_ends_the_job_without_an_adapter(base: Path, tmp_path: Path) -> None:
    limits = {"entropy_factor": 1.0001, "patience": 1}
    outcome, _ = done(spec(base, limits=limits), tmp_path)
    assert outcome.outcome == "failed"
    assert "entropy is" in str(outcome.reason)
    assert not (tmp_path / "adapter").exists()


def test_a_gradient_that_is_not_finite_ends_the_job(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = torch.nn.utils.get_total_norm
    monkeypatch.setattr(
        torch.nn.utils, "get_total_norm", lambda *given: measured(*given) * float("nan")
    )
    outcome, _ = done(spec(base), tmp_path)
    assert outcome.outcome == "failed"
    assert "optimizer step 1: the gradient's norm is nan" in str(outcome.reason)
    assert outcome.steps == 0
    assert not (tmp_path / "adapter").exists()


def test_a_job_goes_on_from_an_adapter_of_its_base(base: Path, tmp_path: Path) -> None:
    first, _ = done(spec(base), tmp_path / "first")
    watched = {"watch_reference": True, "limits": {"kl": 50.0, "entropy_factor": None}}
    child = spec(base, parent=first.adapter, job="k", seed=9, **watched)
    second, said = done(child, tmp_path / "second")
    assert second.outcome == "trained"
    assert verify(tmp_path / "second" / "adapter").parent == first.sha256
    assert said[0].metrics is not None
    assert said[0].metrics.kl == pytest.approx(0.0, abs=1e-6), "the parent is the reference"


def test_an_adapter_of_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    first, _ = done(spec(base), tmp_path / "first")
    other = letters.checkpoint(tmp_path / "other", seed=1)
    outcome, _ = done(spec(other, parent=first.adapter), tmp_path / "second")
    assert "load the base it was trained on" in str(outcome.reason)
    outcome, _ = done(spec(base, base_sha256="0" * 64), tmp_path / "third")
    assert "name the base that it was written for" in str(outcome.reason)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"checkpoint": "nowhere"}, "nowhere holds no checkpoint"),
        ({"environment": "shoppe"}, "no environment 'shoppe'; did you mean shop"),
        ({"pools": [{"name": "a", "tasks": ["letters/hlaf/1"]}]}, "no task 'letters/hlaf/1'"),
        ({"lora": {"targets": ["w_proj"]}}, "'w_proj'"),
        ({"device": "cuda:99"}, "cuda:99 cannot be used"),
    ],
)
def test_what_is_not_there_is_named_before_anything_is_played(
    changes: dict[str, Any], names: str, base: Path, tmp_path: Path
) -> None:
    outcome, said = done(spec(base, **changes), tmp_path)
    assert outcome.outcome == "failed"
    assert names in str(outcome.reason)
    assert said == []
    assert not (tmp_path / "adapter").exists()


def test_a_journal_of_other_rollouts_is_refused(base: Path, tmp_path: Path) -> None:
    job = spec(base)
    with Job(job, tmp_path) as left:
        next(iter(left))
    journal = tmp_path / "rollouts.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"j/0/0/0"', b'"j/0/0/9"'))
    outcome, _ = done(job, tmp_path)
    assert "written by another version" in str(outcome.reason)


def test_a_trained_adapter_changed_the_weights(base: Path, tmp_path: Path) -> None:
    done(spec(base), tmp_path)
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    changed = [name for name, t in weights.items() if "lora_B" in name and t.abs().max() > 0]
    assert len(changed) == 14


def test_a_spec_is_told_apart_by_every_field(base: Path) -> None:
    assert digest(spec(base)) == digest(spec(base))
    assert digest(spec(base)) != digest(spec(base, seed=4))


def test_a_tracker_that_is_not_installed_is_named_before_anything_is_played(
    base: Path, tmp_path: Path
) -> None:
    outcome, said = done(spec(base, tracker="wandb:letters"), tmp_path / "out")
    assert outcome.outcome == "failed"
    assert "wandb is not installed: pip install wandb" in str(outcome.reason)
    assert not said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["lock"]
