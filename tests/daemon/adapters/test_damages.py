"""Adapters that are damaged in every way there is are refused, before and by a load."""

import shutil
from pathlib import Path

import pytest

from daemon.adapters.compatibility import fit
from daemon.adapters.directory import BadAdapter
from daemon.engine.adapters import Adapters as EngineAdapters
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from ops.adapter_damages import DAMAGES, SLOW_PATTERN, copy_with_damage, write_setting
from ops.random_adapters import Adapters


@pytest.fixture(scope="module")
def served() -> EngineAdapters:
    return EngineAdapters(Policy.load(CHECKPOINT, "reference"), "here")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_adapter_is_refused_in_one_line_by_check_and_load(
    adapters: Adapters, served: EngineAdapters, tmp_path: Path, name: str
) -> None:
    folder = copy_with_damage(adapters["v1-bare"], tmp_path / "damaged", name)
    with pytest.raises(BadAdapter) as checked:
        fit(folder, CHECKPOINT)
    with pytest.raises(BadAdapter) as loaded:
        served.load("damaged", folder)
    for refused in (checked, loaded):
        assert len(str(refused.value)) < 1000
        assert str(refused.value).isprintable(), "one line, whatever the files hold"
    assert not served.entries


@pytest.mark.timeout(60)
@pytest.mark.parametrize("field", ["rank_pattern", "alpha_pattern"])
def test_a_slow_pattern_that_names_no_layer_costs_nothing(
    adapters: Adapters, served: EngineAdapters, tmp_path: Path, field: str
) -> None:
    folder = Path(shutil.copytree(adapters["v1-bare"], tmp_path / "slow"))
    write_setting(folder, field, f'{{"{SLOW_PATTERN}": 4}}')
    assert fit(folder, CHECKPOINT).layers == 28
    served.load("slow", folder)
    served.unload("slow")
