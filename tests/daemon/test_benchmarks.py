"""Real rollouts: gpt-4o on tau-bench airline, imported and ranked."""

import json
from pathlib import Path

import pytest

from tests.daemon.conftest import Kintsugi

FILE = Path("tau_bench") / "gpt-4o-airline.trials_0_1.json"

TWELVE = {
    "context_overflow", "tool_loop", "user_id_failure", "policy_violation", "wrong_tool",
    "wrong_entity", "wrong_item_selection", "incorrect_arguments", "over_cautious",
    "premature_termination", "missing_write_action", "information_error",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.benchmarks
def test_what_an_agent_keeps_failing_at_is_ranked(
    home: Path, kintsugi: Kintsugi, benchmarks: Path
) -> None:
    file = benchmarks / FILE
    imported = kintsugi("import", file, "--base", "gpt-4o", "--json")
    assert (imported.code, imported.json["imported"], imported.json["rejected"]) == (0, 100, [])
    assert kintsugi("import", file, "--base", "gpt-4o", "--json").json["duplicates"] == 100

    rollouts = kintsugi("rollouts", "ls", "--json").json
    failed = [line for line in rollouts if line["success"] is False]
    lost = sum(run["reward"] < 1 - 1e-6 for run in json.loads(file.read_text()))
    assert (len(rollouts), len(failed)) == (100, lost)
    assert all(line["category"] in TWELVE | {"other"} for line in failed)

    patterns = kintsugi("patterns", "--json").json
    priorities = [line["priority"] for line in patterns]
    assert priorities == sorted(priorities, reverse=True)
    assert {(line["alias"], line["base"]) for line in patterns} == {("agent", "gpt-4o")}
    for line in patterns:
        assert line["pattern"] == f"{line['category']}|{line['pivot']}"
        assert line["category"] in TWELVE
        assert line["failures"] <= line["attempts"]
        assert 0 < line["pass_rate"] < 1
    # One round: what failed most often leads, and each failure is in one pattern.
    assert patterns[0]["failures"] == max(line["failures"] for line in patterns)
    round_ = kintsugi("diagnose", "--json").json
    status = kintsugi("status", "--json").json
    assert sum(line["failures"] for line in patterns) + round_["other"] == status["cycle"]["failed"]

    for line in patterns:
        for rollout in line["examples"]:
            shown = kintsugi("rollouts", "show", rollout, "--json").json
            assert (shown["category"], shown["pivot"]) == (line["category"], line["pivot"])
            assert shown["evidence"][line["category"]] is not None
            assert shown["messages"]
            assert shown["gold_actions"] is not None
            assert kintsugi("rollouts", "show", rollout).code == 0
    assert kintsugi("log", "verify", "--json").json == {"ok": True, "events": 101, "problems": []}
    assert kintsugi("rebuild", "--json").json["equal"] is True
