"""Every real file of the benchmark data is read as it was recorded."""

import json
from collections import Counter
from pathlib import Path

import pytest

from events.blobs import BlobStore
from events.codec import decode
from events.memory import MemoryLog
from events.messages import executed_calls
from producers.importers.importer import RolloutImport, append_rollouts, read_rollouts
from tests.producers.importers.test_importer import stored
from tests.producers.samples import read

pytestmark = pytest.mark.benchmarks


SHUFFLED = {
    "the recorded action checks are not the gold actions of its task": 43,
    "what the agent said does not give the recorded COMMUNICATE part": 6,
}


def assert_paired(rollouts: list[RolloutImport]) -> None:
    """As many results as calls, each behind its call."""
    for one in rollouts:
        assert one.data.content is not None
        executed = executed_calls(one.data.content.messages)
        results = sum(message.role == "tool" for message in one.data.content.messages)
        assert len(executed) == results
        assert all(call.result is not None for call in executed)


def environments(rollouts: list[RolloutImport]) -> Counter[str | None]:
    return Counter(one.data.task.environment if one.data.task else None for one in rollouts)


def test_the_recorded_trials_of_gpt_4o(benchmarks: Path) -> None:
    rollouts, rejections = read(benchmarks / "tau_bench" / "gpt-4o-airline.trials_0_1.json")
    assert not rejections
    assert len(rollouts) == len({one.envelope.id for one in rollouts}) == 100
    assert sum(one.data.reward or 0 for one in rollouts) == 43
    assert sum(bool(one.data.success) for one in rollouts) == 43
    assert Counter(one.data.trial for one in rollouts) == {0: 50, 1: 50}
    assert len({one.data.task and one.data.task.id for one in rollouts}) == 50
    assert environments(rollouts) == {"airline": 100}
    assert Counter(one.data.termination for one in rollouts)["max_steps"] == 2
    assert_paired(rollouts)
    assert {warning for one in rollouts for warning in one.warnings} == {
        "two calls have the same id"
    }


@pytest.mark.parametrize(
    ("name", "count", "reward", "environment", "base"),
    [
        ("gpt-4.1_airline_1trial", 20, 10, "airline", "gpt-4.1"),
        ("gpt-4.1_retail_1trial", 40, 34, "retail", "gpt-4.1"),
        ("gpt-4.1_telecom_1trial", 40, 18, "telecom", "gpt-4.1"),
        ("gpt-4.1_telecom_no-user_1trial", 40, 20, "telecom", "gpt-4.1"),
        ("gpt-4.1_telecom_no-user_4trials_5tasks", 20, 16, "telecom", "gpt-4.1-2025-04-14"),
        ("pr103_azure_airline.even_tasks", 25, 15, "airline", "azure/gpt-4o-2024-11-20"),
        ("qwen2.5-7b_airline_1trial.even_tasks", 25, 5, "airline", "ollama_chat/qwen2.5:7b"),
        (
            "toolorchestra_airline_1trial.BROKEN_TASK_IDS",
            50,
            28,
            "airline",
            "gpt-4.1-mini-2025-04-14",
        ),
    ],
)
def test_recorded_simulations(
    benchmarks: Path, name: str, count: int, reward: float, environment: str, base: str
) -> None:
    path = benchmarks / "tau2_simulations" / f"{name}.json"
    rollouts, rejections = read(path)
    assert not rejections
    assert len(rollouts) == len({one.envelope.id for one in rollouts}) == count
    assert sum(one.data.reward or 0 for one in rollouts) == reward
    assert sum(bool(one.data.success) for one in rollouts) == reward
    assert environments(rollouts) == {environment: count}
    assert {one.data.base for one in rollouts} == {base}
    assert all(one.envelope.time is not None for one in rollouts)
    assert_paired(rollouts)
    warnings = Counter(text.split(":")[0] for one in rollouts for text in one.warnings)
    # Seven of the fifty have no action checks, which would show that they are shuffled as well.
    assert warnings == (SHUFFLED if "BROKEN" in name else {})
    raw = json.loads(path.read_text())["simulations"]
    assert [one.data.content and len(one.data.content.messages) for one in rollouts] == [
        len(simulation["messages"]) for simulation in raw
    ]


def test_conversations_for_training_are_unjudged(benchmarks: Path) -> None:
    rollouts, rejections = read(benchmarks / "tau2_sft_v1_small" / "train.jsonl")
    assert not rejections
    assert len(rollouts) == 37
    assert all(one.data.success is None and one.data.task is None for one in rollouts)
    assert sum(len(one.data.known_tools or ()) > 5 for one in rollouts) == 37
    assert_paired(rollouts)
    assert not any(one.warnings for one in rollouts)


def test_the_whole_folder_is_imported_and_stored(benchmarks: Path, tmp_path: Path) -> None:
    log = MemoryLog()
    paths = [benchmarks / name for name in ("tau_bench", "tau2_simulations", "tau2_sft_v1_small")]
    items = list(read_rollouts(paths))
    result = append_rollouts(log, BlobStore(tmp_path), items, lambda _: set())
    assert (result.imported, result.duplicates) == (100 + 260 + 37, 0)
    assert {one.position for one in result.rejected} == {"file"}
    assert len([decode(record) for record in stored(log)]) == result.imported
