"""Adapters that are brought onto replicas while they are on their way out."""

from daemon.serving.decisions import Decisions
from ops.bench.serving.adapters import Adapters
from tests.consumers.deciding import decided, evaluated
from tests.daemon.serving.conftest import MakeHome
from tests.daemon.serving.homes import ADA


def test_what_the_gate_rejected_is_promoted_over_it_while_it_is_loaded(
    make_home: MakeHome, adapters: Adapters
) -> None:
    """Making room unloads what nobody uses, and that is the very adapter."""
    home = make_home(1)
    name, decisions = home.push(adapters["v1"]), Decisions(home.app)
    home.publisher.stage(name, ADA)
    decisions.take(evaluated(name), "evaluated", "a test")
    decisions.take(decided(name, "REJECT"), "rejected", "a test")
    assert (home.state(name), home.loaded()) == ("rejected", [[name]])
    home.publisher.promote(name, ADA, share=0.5, override=True)
    assert home.shares() == {name: 0.5, None: 0.5}
    assert home.loaded() == [[name]]
    assert home.tick().unloaded == []
