"""Chains of cycles: the product's own decisions, one after the other, and a record of each."""

from pathlib import Path

import pytest

from daemon.engine.reference.recipe import WEAK
from ops.demo.place import SIZES
from ops.learning.chain import __main__ as chain
from ops.learning.chain.run import Chain, CycleRecord
from ops.learning.chain.settings import (
    CONFIGURATIONS,
    MIXTURES,
    SETTINGS,
    Configuration,
    Settings,
)

SMALL = Settings(recorded=48, tasks=2, trials=1)
SHORT = Configuration(
    sections={
        "proposer": {"tasks": 8},
        "training": {"rollouts": 64, "groups": 4, "size": 4, "probe_below": 0.0},
        "trial": {"pilot_tasks": 2, "least_tasks": 2, "most_tasks": 2, "trials": 2},
    }
)


def test_the_weak_kinds_are_a_third_of_the_mixture() -> None:
    four = MIXTURES["four"]
    assert sum(four.values()) == pytest.approx(1)
    assert sum(four[kind] for kind in WEAK) == pytest.approx(0.34)


def test_a_chain_runs_by_the_settings_of_the_demo() -> None:
    sections = CONFIGURATIONS["demo"].build_sections()
    assert sections["proposer"]["tasks"] == SIZES["whole"].tasks
    assert sections["training"]["rollouts"] == SIZES["whole"].rollouts
    digests = {SETTINGS.compute_digest(configuration) for configuration in CONFIGURATIONS.values()}
    assert len(digests) == len(CONFIGURATIONS)


@pytest.mark.long
def test_a_chain_leaves_a_record_of_each_cycle_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CONFIGURATIONS, "short", SHORT)
    first, second = Chain(tmp_path, 0, "short", SMALL).run(1)
    assert (first.number, first.outcome, first.policy) == (0, "base", "reference")
    assert set(first.kinds) == set(MIXTURES["four"])
    assert second.number == 1
    assert second.outcome in ("promoted", "rejected")
    assert second.gate is not None
    assert second.pools
    assert second.warm_start > 0
    again = list(Chain(tmp_path, 0, "short", SMALL).run(1))
    assert again == [first, second]
    assert chain.main(["report", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[3] == chain.render([CycleRecord.model_validate(second)]).strip()


def test_a_folder_without_a_cycle_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chain.main(["report", "--out", str(tmp_path)]) == 1
    assert "run one first" in capsys.readouterr().err
