"""A job that teaches the user, with the reference policy."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from daemon.adapters.directory import verify
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.synthesis.user_training.dialogue_file import (
    DIALOGUES,
    DialogueRecord,
    write_dialogues,
)
from daemon.methods.synthesis.user_training.examples import play_gold
from daemon.methods.synthesis.user_training.job import FIGURES, UserJobResult, run
from daemon.methods.synthesis.user_training.training import UserProgress
from daemon.solver.job import ADAPTER
from daemon.solver.kinds import check_supported
from daemon.solver.spec import NotSupported
from daemon.solver.telemetry.progress import Progress
from envs.shop.environment import Shop
from events.jobs import JobSpec

SHOP = Shop()
KINDS = tuple(SHOP.capabilities)
FIRST = 72_000_000


def name_tasks(first: int, count: int) -> list[str]:
    return [f"shop/{KINDS[place % len(KINDS)]}/{first + place}" for place in range(count)]


def build_spec(shown: int = 24, pool: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    sft = {"epochs": 3, "batch_tokens": 2048, "optimizer": {"lr": 4e-3}}
    fields: dict[str, Any] = {
        "job": "u", "base": "reference", "checkpoint": str(CHECKPOINT), "environment": "shop",
        "teaches": "user", "grpo": False, "threads": 1, "seed": 1,
        "pools": [
            {
                "name": "gold",
                "tasks": name_tasks(FIRST + 1000, 8),
                "references": name_tasks(FIRST, shown),
                **(pool or {}),
            }
        ],
        "warm_start": {"mode": "always", "sft": sft},
    }  # fmt: skip
    return JobSpec.model_validate(fields | changes)


@pytest.mark.long
@pytest.mark.learning
def test_a_user_learns_the_words_of_customers_and_is_the_same_again(tmp_path: Path) -> None:
    spec, told = build_spec(), list[Progress]()
    outcome = run(spec, tmp_path / "whole", told.append)
    assert (outcome.outcome, outcome.adapter) == ("trained", str(tmp_path / "whole" / ADAPTER))
    result = UserJobResult.model_validate_json((tmp_path / "whole" / FIGURES).read_bytes())
    assert (result.gold, result.recorded, result.held_out, result.left_out) == (24, 0, 8, ())
    assessed = [item.user for item in told if isinstance(item, UserProgress)]
    assert result.figures == min(assessed, key=lambda figures: figures.held_out_loss)
    assert result.figures.held_out_loss < 0.8 * assessed[0].held_out_loss
    provenance = verify(tmp_path / "whole" / ADAPTER)
    assert (provenance.steps, provenance.rollouts) == (result.figures.steps, ())
    assert run(spec, tmp_path / "whole") == outcome, "a finished job repeats its outcome"
    stopped = run(spec, tmp_path / "again", stopping=lambda: True)
    assert stopped.outcome == "failed"
    assert "run the same command to begin again" in str(stopped.reason)
    assert run(spec, tmp_path / "again").sha256 == outcome.sha256
    other = run(build_spec(seed=2), tmp_path / "whole")
    assert other.outcome == "failed"


def record(*tasks: str) -> list[DialogueRecord]:
    return [
        DialogueRecord(
            rollout=f"r/{task}",
            task=task,
            policy="p1",
            messages=tuple(play_gold(SHOP, SHOP.task(task))),
        )
        for task in tasks
    ]


def name_file(content: bytes, dialogues: list[DialogueRecord], **changes: Any) -> JobSpec:
    digest = sha256(content).hexdigest()
    sft = {"epochs": 1, "batch_tokens": 2048}
    return build_spec(
        shown=4,
        pool={"successes": [item.rollout for item in dialogues]},
        dialogues=digest,
        warm_start={"mode": "always", "successes": digest, "sft": sft},
        **changes,
    )


@pytest.mark.learning
def test_a_user_that_diverges_is_a_failure_with_the_remedy(tmp_path: Path) -> None:
    sft = {"epochs": 40, "batch_tokens": 256, "optimizer": {"lr": 10, "weight_decay": 100}}
    outcome = run(build_spec(4, warm_start={"mode": "always", "sft": sft}), tmp_path)
    assert (outcome.outcome, outcome.adapter) == ("failed", None)
    assert str(outcome.reason).endswith("lower optimizer.lr")
    assert not (tmp_path / ADAPTER).exists()


@pytest.mark.learning
def test_recorded_dialogues_are_shown_and_what_is_no_example_is_counted(tmp_path: Path) -> None:
    dialogues = record(*name_tasks(FIRST + 2000, 3))
    broken = (
        dialogues[0].messages[0].model_copy(update={"content": "I <reflect>a</reflect> want it."})
    )
    dialogues[0] = dialogues[0].model_copy(update={"messages": (broken,)})
    dialogues[1] = dialogues[1].model_copy(update={"task": "shop/no_such/1"})
    content = write_dialogues(dialogues)
    (tmp_path / DIALOGUES).write_bytes(content)
    outcome = run(name_file(content, dialogues), tmp_path)
    assert outcome.outcome == "trained", outcome.reason
    result = UserJobResult.model_validate_json((tmp_path / FIGURES).read_bytes())
    assert (result.gold, result.recorded) == (4, 1)
    first, second = sorted(result.left_out)
    assert "does not give back" in second
    assert "no task 'shop/no_such/1'" in first


@pytest.mark.parametrize(("there", "names"), [(None, "is missing"), (b"{}\n", "was changed")])
def test_a_file_of_dialogues_that_is_not_the_specs_is_an_outcome(
    there: bytes | None, names: str, tmp_path: Path
) -> None:
    if there is not None:
        (tmp_path / DIALOGUES).write_bytes(there)
    dialogues = record("shop/cancel/1")
    outcome = run(name_file(write_dialogues(dialogues), dialogues), tmp_path)
    assert outcome.outcome == "failed"
    assert names in str(outcome.reason)
    assert "request the job anew" in str(outcome.reason)


@pytest.mark.learning
def test_a_job_shows_users_in_its_manners(tmp_path: Path) -> None:
    """Formal lines are longer, and the tasks and their number are the same."""
    results = []
    for name, manners in (("plain", ()), ("formal", ("formal",))):
        outcome = run(build_spec(shown=8, manners=manners), tmp_path / name)
        assert outcome.outcome == "trained", outcome.reason
        results.append(UserJobResult.model_validate_json((tmp_path / name / FIGURES).read_bytes()))
    plain, formal = results
    assert (plain.gold, plain.held_out) == (formal.gold, formal.held_out) == (8, 8)
    assert formal.figures.tokens > plain.figures.tokens


def test_a_spec_without_manners_keeps_its_form() -> None:
    assert "manners" not in build_spec().model_dump(mode="json")
    with pytest.raises(ValueError, match="manners are read by a job that teaches the user"):
        build_spec(teaches="agent", manners=["polite"])


WARM: dict[str, Any] = {"mode": "always"}
USER = {"url": "http://127.0.0.1:1/v1", "model": "customer"}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"grpo": True}, "has grpo"),
        ({"checkpoints": [1]}, "has checkpoints"),
        ({"warm_start": {**WARM, "siblings": ["shop/cancel/7"]}}, "has siblings"),
        ({"pool": {"user": USER}}, "has the user of a pool"),
        ({"pool": {"reward": "repair"}}, "has the reward of a pool"),
        ({"manners": ["as_is", "rude"]}, "in the manner 'rude'; there is as_is, "),
        ({"dialogues": "0" * 64}, "file of dialogues is 000000000000"),
    ],
)
def test_what_a_job_of_a_user_does_not_read_is_named(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(NotSupported, match=names):
        check_supported(build_spec(**changes))


def test_a_job_whose_oracle_passes_nothing_has_nothing_to_show(tmp_path: Path) -> None:
    """Its only tasks are of an environment whose oracle fails them."""
    pool = {"tasks": ["letters/mute/1"], "references": ["letters/mute/2"]}
    spec = build_spec(
        pool=pool, environment=str(Path(__file__).parents[3] / "solver" / "letters.py")
    )
    outcome = run(spec, tmp_path)
    assert outcome.outcome == "failed"
    assert "has no dialogue to learn from" in str(outcome.reason)
