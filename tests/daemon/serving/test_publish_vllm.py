"""The life of adapters on a real vLLM beside an embedded engine, two replicas of one base."""

from pathlib import Path

import pytest

from daemon.adapters.fingerprint import BaseMixup
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.evaluation.comparison import Questions
from daemon.serving.residency import NoRoom
from daemon.serving.staging import StageRefusal
from envs.shop.environment import Shop
from ops.random_adapters import Adapters
from ops.vllm.server import Vllm
from tests.daemon.serving.homes import ADA, Home, Restartable
from tests.daemon.serving.planted import load_adapter

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_an_adapter_is_staged_promoted_taken_back_and_unloaded_on_both(
    vllm: Vllm, adapters: Adapters, reference: tuple[Policy, Chat], tmp_path: Path
) -> None:
    embedded = Restartable(*reference)
    room = {"max_loras": 4, "max_cpu_loras": 8, "checkpoint": adapters.base}
    home = Home(tmp_path / "home", [embedded], [vllm.url], upstream=[{}, room])
    try:
        names = [home.serve(adapters[name]) for name in ("v1", "v2", "v3")]
        row = home.row(names[2])
        assert row.distance is not None
        assert row.distance < 1e-3, "both compute in float32"
        assert set(row.replicas) == set(home.urls)
        assert home.tick().unloaded == [names[0]] * 2
        home.publisher.rollback("agent", ADA)
        assert home.shares() == {names[1]: 1.0}
        embedded.restart()
        assert home.tick().loaded == [names[1]]
        assert home.loaded() == [[names[1]], [names[1]]]
        staged = [home.push(adapters["v1"], name=f"again-{number}") for number in range(4)]
        for name in staged[:3]:
            home.publisher.stage(name, ADA)
        with pytest.raises(NoRoom, match="max_loras is 4"):
            home.publisher.stage(staged[3], ADA)
        for name in staged[:3]:
            home.publisher.retire(name, ADA)
        home.tick()
        assert home.loaded() == [[names[1]], [names[1]]]
    finally:
        for name in home.loaded()[1]:
            home.fleet.engines[vllm.url].replica.unload(name)
        home.close()
        embedded.stop()


def test_where_adapters_reach_the_base_it_answers_beside_none(
    vllm: Vllm, adapters: Adapters, tmp_path: Path
) -> None:
    """A vLLM without the plugin, of which every slot was filled once."""
    home = Home(tmp_path / "home", [], [vllm.url], upstream={"max_loras": 4, "max_cpu_loras": 8})
    replica = home.fleet.engines[vllm.url].replica
    try:
        for name in [load_adapter(replica, adapters["strong"]) for _ in range(4)]:
            replica.unload(name)
        name, other = home.push(adapters["v1"]), home.push(adapters["v2"])
        with pytest.raises(BaseMixup, match=rf"{vllm.url}: .* ops/vllm/mend"):
            home.publisher.compare(name, Shop(), Questions(1, 0, 1, "cancel"), ADA, 2)
        with pytest.raises(BaseMixup):
            home.publisher.set_route("agent", {name: 0.5, None: 0.5}, ADA)
        assert home.shares() == {}
        home.publisher.promote(name, ADA, override=True)
        assert home.shares() == {name: 1.0}, "alone it may answer"
        home.publisher.rollback("agent", ADA)
        with pytest.raises(StageRefusal, match="while an adapter answers, the base answers"):
            home.publisher.stage(other, ADA)
        assert other not in home.loaded()[0]
    finally:
        for left in home.loaded()[0]:
            replica.unload(left)
        home.close()
