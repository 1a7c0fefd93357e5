"""Every number of a job's spec has a range, and a value outside of it is named."""

import json
import math
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from daemon.config.job_ranges import MOST_CHARACTERS, RANGES, TRAINING, find_excess
from daemon.config.presets import PRESETS
from daemon.config.settings import Training
from events.jobs import JobSpec

LEAST: dict[str, Any] = {
    "job": "j1",
    "base": "tiny",
    "checkpoint": "somewhere",
    "environment": "shop",
    "pools": [{"name": "traffic", "tasks": ["shop/cancel/1", "shop/cancel/2"]}],
}


def build(**changes: Any) -> JobSpec:
    return JobSpec.model_validate_json(json.dumps(LEAST | changes))


def list_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a value of this type may hold, itself among them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from list_models(field.annotation)
    for part in get_args(annotation):
        yield from list_models(part)


def holds_numbers(annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return False
    return annotation in (int, float) or any(map(holds_numbers, get_args(annotation)))


def test_every_number_of_a_spec_has_a_finite_range() -> None:
    numbers = {
        model: {n for n, field in model.model_fields.items() if holds_numbers(field.annotation)}
        for model in set(list_models(JobSpec))
    }
    assert {model: set(ranges) for model, ranges in RANGES.items()} == {
        model: names for model, names in numbers.items() if names
    }
    for ranges in RANGES.values():
        for low, high in ranges.values():
            assert -math.inf < low < high < math.inf


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_inside_the_ranges(name: str) -> None:
    assert find_excess(build(algorithm=PRESETS[name].algorithm.model_dump(mode="json"))) is None
    recipe = PRESETS[name].recipe
    if recipe is not None:
        sampler = {"groups": recipe.groups, "size": recipe.size}
        lora = recipe.lora.model_dump(mode="json")
        assert find_excess(build(optimizer={"lr": recipe.lr}, sampler=sampler, lora=lora)) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"optimizer": {"lr": 1e300}}, "optimizer.lr is 1e+300, outside of its range, 1e-12 to 10"),
        ({"optimizer": {"lr": 1e-320}}, "optimizer.lr is 1e-320"),
        ({"optimizer": {"betas": [0.9, 0.9999999]}}, "optimizer.betas.1 is 0.9999999, outside"),
        ({"optimizer": {"eps": 1e-300}}, "optimizer.eps is 1e-300"),
        ({"warm_start": {"sft": {"epochs": 2**63}}}, "warm_start.sft.epochs is 9,223,372,036"),
        ({"sampler": {"temperature": 1e-300}}, "sampler.temperature is 1e-300"),
        ({"sampler": {"max_tokens": 10**300}}, "sampler.max_tokens is an integer of 997 bits"),
        ({"sampler": {"groups": 4096, "size": 1024, "rollouts": 10**9}}, "4,194,304 rollouts"),
        ({"threads": 10**9}, "threads is 1,000,000,000, outside of its range, 1 to 1,024"),
        ({"checkpoint": "a\0b"}, "checkpoint is 'a\\x00b'"),
        ({"parent": "x" * 5000}, "parent has 5,000 characters, and at most 4,096"),
        ({"lora": {"targets": ["q"] * 2000}}, "lora.targets has 2,000 items"),
        (
            {"pools": [{"name": "p", "tasks": [str(n) for n in range(100_001)]}]},
            "pools.0.tasks has 100,001 items",
        ),
        (
            {"pools": [{"name": "p", "tasks": ["a"], "share": 1e200}]},
            r"pools.0.share is 1e+200, outside of its range, 1e-09 to 1000000000.0; correct it",
        ),
    ],
)  # fmt: skip
def test_the_first_value_outside_its_range_is_named(changes: dict[str, Any], problem: str) -> None:
    if "warm_start" in changes:
        pools = [{"name": "p", "tasks": ["a"], "references": ["b"]}]
        changes = changes | {"pools": pools}
    excess = find_excess(build(**changes))
    assert excess is not None
    assert excess.startswith(problem) or problem in excess
    assert len(excess) < 300


def test_a_text_of_the_greatest_length_is_taken() -> None:
    assert find_excess(build(checkpoint="x" * MOST_CHARACTERS)) is None


@pytest.mark.parametrize("name", TRAINING)
def test_a_setting_that_no_job_takes_is_refused(name: str) -> None:
    low, high = TRAINING[name]
    assert getattr(Training(**{name: high}), name) == high
    with pytest.raises(ValidationError, match=name):
        Training(**{name: high * 2})
    assert low < high


def test_every_number_of_the_settings_that_becomes_one_of_a_spec_has_its_range() -> None:
    numbers = {n for n, f in Training.model_fields.items() if holds_numbers(f.annotation)}
    shares = {"probe_below", "references_most", "momentum"}
    assert numbers - TRAINING.keys() - shares == {"references"}, "counts tasks that there are"
