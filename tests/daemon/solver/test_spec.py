"""A job's spec: frozen, complete, and without room for a misspelt wish."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from daemon.config.presets import PRESETS
from daemon.solver.spec import BadSpec, digest, read_spec
from events.jobs import JobSpec, WarmStart

LEAST: dict[str, Any] = {
    "job": "j1",
    "base": "tiny",
    "checkpoint": "somewhere",
    "environment": "shop",
    "pools": [{"name": "traffic", "tasks": ["shop/cancel/1", "shop/cancel/2"]}],
}


DIGEST = "af5547a59677feef093c9a4a98595cf3a16552b35ac70c21e7581cc0df8ee9a0"
"""Of that spec, when pools had neither environment nor user nor reward."""

ROUNDS: dict[str, Any] = {
    "count": 2, "cycle": "c", "alias": "a", "history": 0, "tasks": 1, "explore": 0, "replay": 0
}  # fmt: skip


def pool(name: str, task: str, *references: str) -> dict[str, Any]:
    return {"name": name, "tasks": [task], "references": list(references)}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps(LEAST | changes))
    return path


def test_a_spec_survives_being_stored(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, seed=7))
    again = written(tmp_path)
    again.write_text(spec.model_dump_json())
    assert read_spec(again) == spec
    assert spec.seed == 7


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_into_a_spec(name: str, tmp_path: Path) -> None:
    algorithm = PRESETS[name].algorithm
    path = written(tmp_path, algorithm=algorithm.model_dump(mode="json"))
    assert read_spec(path).algorithm == algorithm


def test_a_spec_cannot_be_changed(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path))
    with pytest.raises(ValidationError, match="frozen"):
        spec.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"sed": 1}, "sed: Extra inputs"),
        ({"algorithm": {"loss": {"kl": {"bta": 0.1}}}}, r"algorithm\.loss\.kl\.bta"),
        ({"optimizer": {"lr": -1.0}}, r"optimizer\.lr.*-1"),
        ({"sampler": {"size": 1}}, r"sampler\.size"),
        ({"sampler": {"rollouts": 63}}, "63 rollouts is less than one batch of 64"),
        ({"pools": []}, "pools"),
        (
            {"pools": [{"name": "a", "tasks": ["x", "x"]}]},
            "task stands twice among .*: x",
        ),
        ({"pools": LEAST["pools"] * 2}, "two pools have one name"),
        ({"base_sha256": "abc"}, "base_sha256"),
        ({"seed": 1.5}, "seed"),
        ({"limits": {"kl": None}, "watch_reference": True}, "nothing reads it"),
        ({"pools": [{"name": "a", "tasks": ["x"], "replay": True}]}, "every pool is replay"),
        ({"pools": [pool("a", "x"), pool("b", "x")]}, "stands twice among .*: x"),
        ({"pools": [pool("a", "x", "x")]}, "stands twice among .*: x"),
        ({"grpo": False}, "leaves nothing to do"),
        ({"warm_start": {}}, "needs references, and pool traffic has none"),
        ({"pools": [pool("a", "x", "y")], "warm_start": {"siblings": ["y"]}}, "twice among .*: y"),
        ({"pools": [pool("a", "x") | {"successes": ["r"]}], "warm_start": {}}, "come together"),
        ({"pools": [pool("a", "x", "y")], "warm_start": {"successes": "0" * 64}}, "come together"),
        ({"pools": [pool("a", "x") | {"successes": ["r"]}]}, "come together"),
        ({"pools": [pool("a", "x", "y")], "warm_start": {}, "grpo": False}, "mode auto asks GRPO"),
        (
            {
                "pools": [pool("a", "x", "y")],
                "warm_start": {"mode": "always", "siblings": ["z"]},
                "sampler": {"rollouts": 65},
            },
            "65 rollouts is less than one batch of 64 and 2 reference trajectories",
        ),
        ({"checkpoints": [64, 9999]}, "checkpoint 9999 is beyond the budget of 3072"),
        ({"sampler": {"source": {"kind": "elsewhere"}}}, r"sampler\.source"),
        ({"sampler": {"source": {"kind": "endpoint", "url": "u"}}}, r"sampler\.source.*model"),
        ({"sampler": {"source": {"kind": "vllm", "flags": []}}}, r"source.*flags: Extra inputs"),
        ({"device": "tpu"}, "device"),
        ({"tracker": "mlflow:shop"}, "tracker.*mlflow:shop"),
        ({"tracker": "trackio"}, "tracker.*trackio"),
        ({"teaches": "customer"}, "teaches.*customer"),
        ({"pools": [pool("a", "x") | {"reward": "praise"}]}, r"pools.0.reward.*praise"),
        ({"pools": [pool("a", "x") | {"environment": ""}]}, r"pools.0.environment"),
        ({"pools": [pool("a", "x") | {"user": {"url": "u"}}]}, r"pools.0.user.EndpointUser.model"),
        (
            {"pools": [pool("a", "x") | {"user": {"url": "u", "model": "m", "api_key": "k"}}]},
            r"pools.0.user.EndpointUser.api_key: Extra inputs",
        ),
        (
            {
                "pools": [pool("a", "x") | {"reward": "both"}, pool("b", "y") | {"replay": True}],
                "rounds": ROUNDS,
            },
            "rounds diagnose pools of the job's own environment.*leave rounds out",
        ),
    ],
)
def test_what_is_wrong_is_named_in_one_sentence(
    changes: dict[str, Any], names: str, tmp_path: Path
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(BadSpec, match=names) as raised:
        read_spec(path)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("{")
    with pytest.raises(BadSpec, match=r"job\.json is no spec"):
        read_spec(path)


def test_defaults_are_the_recipe_that_was_measured() -> None:
    spec = JobSpec.model_validate(LEAST)
    assert (spec.sampler.groups, spec.sampler.size, spec.sampler.rollouts) == (8, 8, 3072)
    assert (spec.optimizer.lr, spec.optimizer.betas) == (2e-3, (0.9, 0.98))
    assert (spec.lora.rank, spec.lora.alpha, len(spec.lora.targets)) == (8, 16.0, 7)
    assert spec.algorithm.loss.kl.beta == 0.0
    assert spec.algorithm.filter.informative


def test_a_spec_that_says_nothing_new_keeps_its_digest(tmp_path: Path) -> None:
    """The journal of a job that an upgrade interrupts is found by it."""
    spec = read_spec(written(tmp_path))
    plain = spec.model_dump(mode="json")
    assert "uniform" not in plain["algorithm"]["filter"]
    assert plain["pools"][0].keys() == {"name", "share", "tasks", "replay", "references"}
    assert "repair" not in plain["algorithm"]
    assert "teaches" not in plain
    warm = WarmStart().model_dump(mode="json")
    assert "successes" not in warm
    changed = spec.algorithm.filter.model_copy(update={"uniform": "zero"})
    zero = spec.model_copy(
        update={"algorithm": spec.algorithm.model_copy(update={"filter": changed})}
    )
    assert JobSpec.model_validate_json(zero.model_dump_json()) == zero
    assert digest(zero) != digest(spec)


def test_what_a_job_of_before_pools_had_more_to_say_is_named_by() -> None:
    """Its journal has this digest: the spec of a job that an upgrade interrupts."""
    assert digest(JobSpec.model_validate(LEAST)) == DIGEST


def test_a_job_is_in_the_environments_of_its_pools() -> None:
    pools = [pool("a", "x") | {"environment": name} for name in ("retail", "shop", "retail")]
    named = [{**entry, "name": str(n), "tasks": [str(n)]} for n, entry in enumerate(pools)]
    spec = JobSpec.model_validate({**LEAST, "pools": named})
    assert spec.environments == ("shop", "retail")
    assert [entry.is_plain for entry in spec.pools] == [False, False, False]
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
