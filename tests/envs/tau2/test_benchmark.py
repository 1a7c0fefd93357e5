"""The loader of real tasks, and an environment that has them beside its own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.airline.environment import Airline
from envs.environment import UnknownTask
from envs.retail.environment import Retail
from envs.retail.policy import POLICY
from envs.task import GENERATED
from envs.tau2.benchmark import (
    NO_CHANGE,
    ONE_CHANGE,
    SEVERAL_CHANGES,
    InvalidBenchmark,
    NoBenchmark,
)
from envs.tau2.environment import Tau2Environment
from tests.envs.tau2.files import TASKS, task, write_folder

PRISTINE = "b25c9cb211f5efcaee5dd646054a73c4a9f43f4f5acc32c10713cd9f9ac20e9c"


@pytest.fixture
def retail(tmp_path: Path) -> Retail:
    return Retail(write_folder(tmp_path))


def broken(folder: Path, name: str, content: Any) -> Retail:
    """An environment one of whose files is other than it should be."""
    path = write_folder(folder) / "tau2" / "retail" / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Retail(folder)


def test_real_splits_stand_beside_the_generated_one(retail: Retail) -> None:
    assert dict(retail.splits) == {"generated": 288, "train": 2, "test": 1, "base": 3}
    assert [one.id for one in retail.tasks("base")] == ["retail/0", "retail/1", "retail/2"]


def test_a_task_is_the_same_in_base_and_in_its_own_split(retail: Retail) -> None:
    assert list(retail.tasks("train")) == list(retail.tasks("base"))[:2]
    assert [one.split for one in retail.tasks("base")] == ["train", "train", "test"]


def test_the_capability_of_a_real_task_is_how_much_it_changes(retail: Retail) -> None:
    kinds = [one.capability for one in retail.tasks("base")]
    assert kinds == [NO_CHANGE, ONE_CHANGE, SEVERAL_CHANGES]


def test_real_tasks_share_a_state_and_have_the_folders_words(retail: Retail) -> None:
    first, second, _ = retail.tasks("base")
    assert retail.state_key(first) == retail.state_key(second)
    assert retail.policy(first) == "Their policy."
    assert [one["function"]["name"] for one in retail.schemas(first)] == ["theirs"]
    generated = retail.generate("cancel", 0)
    assert retail.policy(generated) == POLICY
    assert len(retail.schemas(generated)) == 16


def test_a_changed_state_is_nobody_elses(retail: Retail) -> None:
    first, second, _ = retail.tasks("base")
    before = retail.reset(second).digest()
    retail.reset(first).edit("users", "ada_berg_1")["email"] = "changed"
    assert retail.reset(second).digest() == before


def test_tasks_of_both_kinds_are_found_by_id(retail: Retail) -> None:
    assert retail.task("retail/2").split == "test"
    assert retail.task("retail/cancel/7").split == GENERATED
    for unknown in ("retail/9", "retail/x", "retail/sell/1", "airline/1"):
        with pytest.raises(UnknownTask, match="has no task"):
            retail.task(unknown)


def test_without_a_folder_only_real_tasks_are_missing(tmp_path: Path) -> None:
    alone = Retail()
    assert dict(alone.splits) == {"generated": 288}
    assert alone.task("retail/cancel/7").seed == 7
    for environment, reason in (
        (alone, "set KINTSUGI_BENCHMARKS"),
        (Retail(tmp_path), "tau2/retail is no folder"),
    ):
        assert dict(environment.splits) == {"generated": 288}
        with pytest.raises(NoBenchmark, match=reason):
            environment.tasks("base")
        with pytest.raises(NoBenchmark, match=reason):
            environment.task("retail/0")


@pytest.mark.parametrize(
    "name", ["db.json", "tasks.json", "split_tasks.json", "policy.md", "tools.json"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write_folder(tmp_path) / "tau2" / "retail" / name).unlink()
    with pytest.raises(NoBenchmark, match=f"{name} cannot be read"):
        Retail(tmp_path).tasks("base")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tasks.json", "[", "tasks.json is no JSON"),
        ("tasks.json", [{"id": "0"}], "tasks.json, task at 0"),
        ("tasks.json", TASKS[1:], "split train names retail/0"),
        ("tasks.json", [task("0", [{"name": "x"}])], "tasks.json, task at 0"),
        (
            "tasks.json",
            [{**TASKS[0], "initial_state": {"message_history": []}}],
            "task 0 has an initial_state",
        ),
        ("split_tasks.json", {"train": []}, "has no split 'base'"),
        ("db.json", {"orders": {}}, "db.json is no such database"),
        ("db.json", {"orders": {"#1": {}}, "users": {}, "products": {}}, "no such database"),
        ("tools.json", [], "tools.json has no 'assistant'"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: Any, reason: str) -> None:
    with pytest.raises(InvalidBenchmark, match=reason):
        broken(tmp_path, name, content).tasks("base")


@pytest.mark.benchmarks
def test_the_canonical_database_has_the_originals_hash(benchmarks: Path) -> None:
    retail = Retail(benchmarks)
    assert retail.benchmark.database.digest() == PRISTINE
    assert {name: retail.splits[name] for name in ("base", "train", "test")} == {
        "base": 114,
        "train": 74,
        "test": 40,
    }


def bare(schema: Any) -> Any:
    """A schema without words: names, types and what is required."""
    if isinstance(schema, list):
        return [bare(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: bare(item) for name, item in value.items()}
        if key in ("properties", "$defs")
        else bare(value)
        for key, value in schema.items()
        if key not in ("description", "title")
    }


@pytest.mark.benchmarks
@pytest.mark.parametrize("environment", [Retail, Airline])
def test_the_tools_have_names_parameters_and_kinds_of_the_original(
    benchmarks: Path, environment: type[Tau2Environment]
) -> None:
    original = environment(benchmarks).benchmark.schemas
    theirs = {one["function"]["name"]: one["function"] for one in original}
    ours = {one["function"]["name"]: one["function"] for one in environment.toolset.schemas()}
    assert set(ours) == set(theirs)
    for name, function in ours.items():
        mine, other = bare(function["parameters"]), bare(theirs[name]["parameters"])
        assert mine.get("required", []) == other.get("required", []), name
        assert list(mine["properties"].items()) == list(other["properties"].items()), name
        assert mine.get("$defs") == other.get("$defs"), name
        assert function["description"] != theirs[name]["description"], name
    raw = json.loads((benchmarks / "tau2" / environment.name / "tools.json").read_text())
    kinds = {name: tool.kind for name, tool in environment.toolset.tools().items()}
    assert kinds == raw["tool_types"]
    assert environment(benchmarks).benchmark.database.digest() == raw["initial_db_hash"]
